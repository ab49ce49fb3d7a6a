"""The scrape collector against real HTTP servers: what it reads, and what a bad target costs."""

import contextlib
import http.server
import threading
import time
from pathlib import Path

import pytest

from exporters.exporter import Exporter, NodeIdentity
from exporters.scrape.collector import ScrapeCollector
from exporters.scrape.page import PageFailed, fetch, parse
from exporters.spool import SpoolStats
from slowrank.telemetry import NodeSample
from slowrank.telemetry.columns import unpack
from slowrank.telemetry.schema import SAMPLE_SCHEMAS

DCGM = (Path(__file__).parent / "dcgm_exporter.txt").read_text()


class Target:
    """A metrics endpoint whose page, status and delay a test changes."""

    def __init__(self):
        self.page, self.status, self.delay, self.drip = DCGM.encode(), 200, 0.0, 0.0
        target = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                time.sleep(target.delay)
                self.send_response(target.status)
                self.send_header("location", "http://127.0.0.1:9/other")
                self.end_headers()
                # The collector hangs up on a page that it gives up.
                with contextlib.suppress(OSError):
                    self.write()

            def write(self):
                while target.drip:
                    self.wfile.write(b"# a line that does not end")
                    time.sleep(target.drip)
                self.wfile.write(target.page)

            def log_message(self, format, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/metrics"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def target():
    made = Target()
    yield made
    made.drip = 0.0
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def collector(target):
    made = ScrapeCollector([target.url])
    yield made
    made.close()


def failures(collector, reason):
    return sum(n for name, n in collector.metrics().items() if f'reason="{reason}"' in name)


def test_a_page_of_dcgm_exporter_fills_the_record(collector, instants):
    """Values, units and device names reach the sample; the sentinel stays missing."""
    record = Exporter(NodeIdentity("c", "n", "b"), [collector]).tick(instants(0), SpoolStats(0, 0))[0]

    assert isinstance(record, NodeSample)
    assert record.gpu_ids == ("0", "1")
    first, second = unpack(SAMPLE_SCHEMAS[record.schema].gpu, record.gpu)
    assert first["gpu.clock.sm_hz"] == pytest.approx(1.98e9)
    assert second["gpu.utilization_ratio"] == pytest.approx(0.97)
    assert first["gpu.energy_millijoules_total"] == 123456789012
    assert first["gpu.temp.mem_celsius"] is None
    assert failures(collector, "blank") == 2


def test_metrics_that_fill_no_column_are_counted(collector, target, instants, caplog):
    """Their number is on /metrics, and their names are logged once for each target."""
    with caplog.at_level("INFO"):
        collector.collect(instants(0))
        collector.collect(instants(1))

    name = f'scrape_series_unused{{target="{target.url}",reason="unknown_metric"}}'
    assert collector.metrics()[name] == 3
    assert [m for m in caplog.messages if "DCGM_FI_DEV_ENC_UTIL" in m] == caplog.messages


def test_counters_of_a_repeated_page_are_missing(collector, target, instants):
    """dcgm-exporter reads its GPUs every 30 s: in between a counter has not stood still.

    Values that stay the same for longer are those of a frozen source.
    """
    seen = [collector.collect(instants(n)).gpu["0"] for n in (0, 1, 89, 91)]

    assert [("gpu.energy_millijoules_total" in columns) for columns in seen] == [True, False, False, True]
    assert all(columns["gpu.power_watts"] == 412.3 for columns in seen)
    target.page = target.page.replace(b"412.3", b"413.0")
    assert "gpu.energy_millijoules_total" in collector.collect(instants(92)).gpu["0"]


@pytest.mark.alone
@pytest.mark.slow
def test_a_slow_target_delays_no_tick(collector, target, instants):
    """Its gauges are held for a while, without counters; the answer counts when it comes."""
    collector.collect(instants(0))
    target.delay = 1.5
    began = time.monotonic()

    late = [collector.collect(instants(n)) for n in (1, 2)]

    assert time.monotonic() - began < 1.0
    assert collector.metrics()["scrape_targets_blocked"] == 1
    assert all("gpu.power_watts" in reading.gpu["0"] for reading in late)
    assert not any(name.endswith("_total") for reading in late for name in reading.gpu["0"])
    time.sleep(1.3)
    target.delay = 0.0
    assert collector.collect(instants(60)).gpu


def test_a_target_that_is_gone_has_no_values(collector, target, instants):
    """After a hold of 15 s its GPUs are missing, which the node stage notices; the failure is counted."""
    collector.collect(instants(0))
    target.status = 503

    assert collector.collect(instants(10)).gpu
    assert not collector.collect(instants(20)).gpu
    assert failures(collector, "status") == 2


@pytest.mark.parametrize("status", [301, 404, 500])
def test_another_status_than_200_is_a_failure(target, status):
    """A redirect is not followed: it could lead anywhere."""
    target.status = status

    with pytest.raises(PageFailed) as failed:
        fetch(target.url)
    assert failed.value.reason == "status"


def test_a_page_without_end_is_given_up(target, monkeypatch):
    """By its size, and by the time until it is complete."""
    target.drip = 0.01
    with pytest.raises(PageFailed) as slow:
        fetch(target.url, timeout=0.3)
    monkeypatch.setattr("exporters.scrape.page.MAX_BYTES", 100)
    with pytest.raises(PageFailed) as large:
        fetch(target.url)

    assert (slow.value.reason, large.value.reason) == ("timeout", "oversize")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<html>not here</html>",
        "DCGM_FI_DEV_GPU_TEMP",
        'DCGM_FI_DEV_GPU_TEMP{gpu="0} 1',
        'DCGM_FI_DEV_GPU_TEMP{gpu="0"} warm',
        "\0\0",
    ],
)
def test_a_page_that_is_not_in_the_format_is_refused_whole(text):
    """Half a page would make the GPUs of the other half look lost."""
    with pytest.raises(PageFailed) as failed:
        parse(text)
    assert failed.value.reason == "not_metrics"


def test_a_page_that_is_no_text_is_refused(target):
    """Bytes that are not UTF-8 are no metrics."""
    target.page = b"\xff\xfe\xff"

    with pytest.raises(PageFailed) as failed:
        fetch(target.url)
    assert failed.value.reason == "not_metrics"
