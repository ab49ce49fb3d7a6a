import math
import urllib.error
import urllib.request

import pytest

from exporters.metrics_page import serve, text


def test_counters_gauges_and_labels_in_prometheus_form():
    """Names carry the prefix, ``_total`` makes a counter, a family is explained and typed once."""
    page = text({'b_total{reason="x"}': 2, 'b_total{reason="y"}': 3, "a": math.nan})

    assert page.splitlines() == [
        "# HELP slowrank_exporter_a A.",
        "# TYPE slowrank_exporter_a gauge",
        "slowrank_exporter_a NaN",
        "# HELP slowrank_exporter_b_total B.",
        "# TYPE slowrank_exporter_b_total counter",
        'slowrank_exporter_b_total{reason="x"} 2',
        'slowrank_exporter_b_total{reason="y"} 3',
    ]


def test_it_serves_metrics_and_health_and_nothing_else():
    """``/metrics`` is read at the time of the request; other paths do not exist."""
    value = [1.0]
    server = serve(0, lambda: {"ticks_total": value[0]})
    try:
        value[0] = 7.0
        base = f"http://127.0.0.1:{server.port}"
        with urllib.request.urlopen(f"{base}/metrics", timeout=5) as reply:
            assert b"slowrank_exporter_ticks_total 7\n" in reply.read()
        with urllib.request.urlopen(f"{base}/healthz", timeout=5) as reply:
            assert reply.read() == b"ok\n"
        with pytest.raises(urllib.error.HTTPError, match="404") as refused:
            urllib.request.urlopen(f"{base}/etc/passwd", timeout=5)
        refused.value.close()
    finally:
        server.close()
