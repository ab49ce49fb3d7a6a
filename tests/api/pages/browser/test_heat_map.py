"""The heat map of a large job in headless Chromium: what is sent, and what drawing it takes.

The page's own script draws a matrix that the API's own code encodes and compresses. Half a million roll-ups
in a database would take minutes of a small machine.
"""

import gzip
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from chromium import CHROMIUM, chromium

from api.http.conditional import GZIP_LEVEL
from api.pages.assets import assets
from api.routes.dashboard.heat import Heat

RANKS, STEPS, SLOW = 1024, 500, 700
REPLICAS = 600
PAGE = """<!doctype html><link rel="icon" href="data:,"><link rel="stylesheet" href="/app.css">
<script defer src="/vendor/uplot-1.6.32/uPlot.iife.min.js"></script>
<script defer src="/plots.js"></script><script defer src="/job.js"></script>
<div data-job="/jobs/large" data-cluster="c" data-since="" data-metric="compute_seconds">
<span data-scale></span><div class="plots" data-steps></div><div class="plots" data-heat></div>
<section><h2 id="matrix"></h2><div class="plots" data-matrix></div></section></div>
"""


def heat_map():
    """Return the answer for ranks with half a per cent of noise, one of which is slow from the middle on."""
    rng = np.random.default_rng(1)
    ratios = 1.0 + 0.005 * rng.standard_normal((RANKS, STEPS))
    ratios[SLOW, STEPS // 2 :] += 0.3
    heat, columns = Heat(RANKS, STEPS), range(STEPS)
    for rank, row in enumerate(ratios):
        heat.add(rank, row)
    ranks = list(range(RANKS))
    rows = {"rank": ranks, "node": [f"gpu-{r // 8:04d}" for r in ranks], "gpu_index": [r % 8 for r in ranks]}
    rows |= {"pp": [0] * RANKS, "dp": [r // 8 for r in ranks], "tp": [r % 8 for r in ranks]}
    times = [1_795_160_000_000 + 10_000 * i for i in columns]
    steps = {"first_step": [5 * i for i in columns], "last_step": [5 * i + 4 for i in columns]}
    return {"by": "rank", "sampled": False, "bin_ms": 10_000, "t": times, "rows": rows} | steps | heat.shown()


def matrix():
    """Return the answer for one stage with many replicas, the last of which is slow."""
    heat = Heat(1, REPLICAS)
    for replica in range(REPLICAS):
        heat.add(0, 1.3 if replica == REPLICAS - 1 else 1.0, replica)
    return {"pp": [0], "dp": list(range(REPLICAS)), "slowest_rank": [list(range(REPLICAS))]} | heat.shown()


@pytest.fixture
def address():
    """The address of a server with the page, its scripts and the compressed answer."""
    answers = {f"/{name}": (asset.body, asset.media_type) for name, asset in assets().items()}
    answers |= {"/": (PAGE.encode(), "text/html")}
    answers |= {"/jobs/large/steps": (b'{"t": []}', "application/json")}
    answers |= {"/jobs/large/matrix": (json.dumps(matrix()).encode(), "application/json")}
    large = gzip.compress(json.dumps(heat_map(), separators=(",", ":")).encode(), GZIP_LEVEL)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            path = self.path.partition("?")[0]
            compressed = path == "/jobs/large/heatmap"
            body, media_type = (large, "application/json") if compressed else answers[path]
            self.send_response(200)
            self.send_header("content-type", media_type)
            if compressed:
                self.send_header("content-encoding", "gzip")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")
def test_a_large_heat_map_is_small_and_quickly_drawn(address, tmp_path):
    """1,024 ranks by 500 bins: at most 300 kB, and a second of the main thread's time on a processor."""
    with chromium(tmp_path / "profile") as page:
        page.show(1280, 800, dark=False)
        page.call("Performance.enable", timeDomain="threadTicks")
        page.open(address)
        page.wait_for("document.querySelector('[data-heat] canvas') !== null")
        metrics = {one["name"]: one["value"] for one in page.call("Performance.getMetrics")["metrics"]}
        (size,) = page.run(
            "performance.getEntriesByType('resource').filter((one) => one.name.includes('/heatmap'))"
            ".map((one) => one.encodedBodySize)"
        )
        assert page.run(
            "(({height, width}) => [height, width])(document.querySelector('[data-heat] canvas'))"
        ) == [
            RANKS,
            STEPS,
        ]
        assert f"rank {SLOW} " in page.run("document.querySelector('[data-heat] ol').innerText")
        assert size <= 300_000
        assert metrics["TaskDuration"] <= 1.0, metrics
        assert page.console == []


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")
def test_a_matrix_of_many_replicas_scrolls_by_itself(address, tmp_path):
    """On a phone the page is as wide as the screen, and each replica wide enough to be seen."""
    with chromium(tmp_path / "profile") as page:
        page.show(390, 800, dark=False)
        page.open(address)
        page.wait_for("document.querySelector('[data-matrix] canvas') !== null")
        assert page.run("document.documentElement.scrollWidth") == 390
        drawn = page.run("document.querySelector('[data-matrix] canvas').getBoundingClientRect().width")
        assert drawn == 2 * REPLICAS
        assert page.console == []
