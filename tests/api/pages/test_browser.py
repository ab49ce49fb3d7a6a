"""The pages in headless Chromium against a served app: drawn, without an error in its console.

Without a Chromium on this machine (Debian: ``apt-get install chromium``) the test is skipped.
"""

import re
import shutil
import subprocess
import time
from datetime import UTC, datetime
from urllib.parse import quote

import pytest

from api.security.auth import SCOPES
from store.access import sessions
from store.telemetry.batches import write_rows
from tests.store.evidence.telemetry import clocks

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
# What a page has only once its script has drawn it.
UPLOT = r'<div class="uplot'
DRAWN = {
    "/findings/{finding}": (UPLOT, r"beside its own past", r'<canvas[^>]*class="strip"'),
    "/": (r'<a class="node', r'sse-connect="/api/v1/events/stream"', r"slower than 15 peers"),
    "/job?cluster=c&job_id=j": (UPLOT, r'<canvas[^>]*class="map"', r"<li>rank 5 \(n0 GPU 5"),
    "/node?cluster=c&node=n0": (r'<figure data-gpu="7".*' + UPLOT,),
    "/timeline?since=28d": (r'<rect class="critical live"',),
    "/settings": (r"API keys",),
    "/docs": (r"/api/v1/findings",),
}


@pytest.fixture
def opened(live, pool, new_token, tmp_path):
    """Open pages in the browser, signed in: ``opened(path)`` returns the document and the console's lines."""
    base = live()
    key_id = new_token(*SCOPES).split("_")[1]

    def visit(path):
        with pool.connection() as conn:
            once = sessions.create(conn, key_id, "sign_in", datetime.now(UTC))
        command = [
            str(CHROMIUM),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
            f"--user-data-dir={tmp_path / 'profile'}",
            # Until the requests of the scripts have been answered. Those of the front page have no end (its
            # stream of events), and it is complete as it is loaded.
            *(() if path == "/" else ("--virtual-time-budget=3000",)),
            "--enable-logging=stderr",
            "--dump-dom",
            f"{base}/sign-in/{once}?next={quote(path)}",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
        return done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE" in line]

    return visit


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")
def test_every_kind_of_page_is_drawn_without_an_error(opened, slow_job, pool):
    """Plots, grid, heat map and small multiples; neither an exception nor a breach of the page's policy."""
    with pool.connection() as conn:
        write_rows(conn, clocks(starts=time.time() // 10 * 10 - 1300))
    for path, parts in DRAWN.items():
        text, console = opened(path.format(finding=slow_job.id))
        assert console == [], path
        assert all(re.search(part, text, re.S) for part in parts), (path, parts)
