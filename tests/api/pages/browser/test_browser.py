"""The pages in headless Chromium against a served app: drawn, accessible, without an error in the console.

Without a Chromium on this machine (Debian: ``apt-get install chromium``) the tests are skipped.
"""

import re
import time
from dataclasses import replace
from importlib.resources import files

import pytest
from chromium import CHROMIUM

from alerts.config import FindingConfig
from slowrank.telemetry.records import Evidence, Subject
from store.findings import findings
from store.telemetry.batches import write_rows
from store.telemetry.buckets import JobEvent
from tests.roll_ups import packed
from tests.store.evidence.telemetry import ONSET, T0, clocks, places, slow_finding, steps

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium"),
]
# What a page has only once its script has drawn it.
UPLOT = r'<div class="uplot'
DRAWN = {
    "/findings/{finding}": (UPLOT, r"beside its own past", r'<canvas[^>]*class="strip"'),
    "/": (r'<a class="node', r'sse-connect="/api/v1/events/stream"', r"slower than 15 peers"),
    "/findings": (r"slower than 15 peers",),
    "/jobs": (r">j</a>",),
    "/job?cluster=c&job_id=j": (UPLOT, r'<canvas[^>]*class="map"', r"<li>rank 5 \(n0 GPU 5"),
    "/node?cluster=c&node=n0": (r'<figure data-gpu="7".*' + UPLOT,),
    "/gpu?id=n0:5": (r"slower than 15 peers",),
    "/timeline?since=28d": (r'<rect class="critical live"',),
    "/settings": (r"API keys",),
    "/runbooks/straggler.fail_slow": (r"<h1",),
    "/docs": (r"/api/v1/findings",),
}
# Until the scripts have drawn: a plot stands in every place for one.
READY = (
    "[...document.querySelectorAll('[data-plots], [data-steps], [data-heat], [data-plot]')]"
    ".every((place) => place.querySelector('.uplot, canvas') || place.textContent === 'no samples')"
)
# The longest part of the first plot without a point of its lines, of the part between its ends.
EMPTY = """(() => {
  const canvas = document.querySelector('.uplot canvas');
  const { own, peers } = window.plots.colours(document.body);
  const lines = [own, peers].map((one) => one.match(/\\d+/g).map(Number));
  const { data, width, height } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  const near = (i, line) => line.reduce((sum, part, k) => sum + Math.abs(data[i + k] - part), 0) < 90;
  const drawn = (x) => [...Array(height).keys()].map((y) => 4 * (y * width + x))
    .some((i) => data[i + 3] > 60 && lines.some((line) => near(i, line)));
  const columns = [...Array(width).keys()].filter(drawn);
  const apart = columns.slice(1).map((x, i) => x - columns[i]);
  return Math.max(...apart) / (columns[columns.length - 1] - columns[0]);
})()"""
# The reference of the API has over a hundred parts that are alike, which axe would take a minute to check.
SOME_OPERATIONS = (
    "document.querySelectorAll('details.operation').forEach((one, i) => { if (i > 9) one.remove(); })"
)
AXE = (
    "axe.run({resultTypes: ['violations']}).then((found) => found.violations"
    ".filter((one) => ['serious', 'critical'].includes(one.impact))"
    ".map((one) => one.id + ' ' + one.nodes.slice(0, 3).map((node) => node.html).join(' | ')))"
)


def test_every_kind_of_page_is_drawn_without_an_error(signed_in_tab, slow_job, pool):
    """Plots, grid, heat map; no exception, no breach of the page's policy, no serious finding of axe.

    On a phone nothing is wider than the screen, and dark colours have as much contrast.
    """
    page, base = signed_in_tab
    axe = (files("axe_core_python") / "axe.min.js").read_text("utf-8")
    with pool.connection() as conn:
        write_rows(conn, packed(clocks(starts=time.time() // 10 * 10 - 1300)))
    for path, parts in DRAWN.items():
        for width, dark in ((1280, False), (390, True)):
            page.show(width, 800, dark=dark)
            page.open(base + path.format(finding=slow_job.id))
            page.wait_for(READY)
            text = page.run("document.documentElement.outerHTML")
            assert all(re.search(part, text, re.S) for part in parts), (path, parts)
            assert page.run("document.documentElement.scrollWidth") <= width, path
            page.run(SOME_OPERATIONS)
            page.run(axe)
            assert page.run(AXE) == [], (path, width)
            assert page.console == [], (path, width)


def test_a_job_without_a_past_is_drawn_alone(signed_in_tab, slow_job, pool):
    """Slow from its third bucket on, there is no past to compare with: the line stands by itself."""
    page, base = signed_in_tab
    seconds = Evidence(metric="compute_seconds", unit="s", detector="peer_step", value=2.6)
    subject = Subject(type="rank", cluster="c", node="n0", rank=6, job_id="j", attempt=0)
    young = slow_finding(subject=subject, onset=T0 + 25, evidence=(seconds,))
    with pool.connection() as conn:
        findings.save(conn, young, FindingConfig())
    page.open(f"{base}/findings/{young.id}")
    page.wait_for(READY)
    plots = page.run(
        "[...document.querySelectorAll('[data-plots] .uplot')].map((one) => "
        "[one.querySelector('canvas').width > 300, one.querySelectorAll('.u-series').length])"
    )
    assert plots[:2] == [[True, 5], [True, 2]]
    assert "undefined" not in page.run("document.querySelector('[data-plots]').outerHTML")
    assert page.console == []


@pytest.mark.parametrize(
    ("path", "table"),
    [("/job?cluster=c&job_id=j", "steps_10s"), ("/node?cluster=c&node=n0", "samples_10s")],
    ids=["job", "node"],
)
def test_no_line_is_drawn_where_nothing_was_read(signed_in_tab, slow_job, pool, path, table):
    """Five of 21 minutes: as wide a part of the plot is empty."""
    page, base = signed_in_tab
    now = time.time() // 10 * 10
    starts = T0 if table == "steps_10s" else now - 1300
    with pool.connection() as conn:
        write_rows(conn, packed(clocks(starts=now - 1300)))
        conn.execute(
            f"DELETE FROM {table} WHERE bucket > to_timestamp(%s) AND bucket < to_timestamp(%s)",
            (starts + 500, starts + 800),
        )
    page.open(base + path)
    page.wait_for(READY)
    assert 0.18 < page.run(EMPTY) < 0.28
    assert page.console == []


def test_changes_of_level_are_listed_with_what_explains_them(signed_in_tab, slow_job, pool):
    """Time, ratio, and what the job declared, as text; a finding leads to its page."""
    page, base = signed_in_tab
    hostile = "<img src=x onerror=alert(1)>" + "m" * 150
    with pool.connection() as conn:
        conn.execute(
            "UPDATE steps_10s SET step_seconds_sum = 1.2 * step_seconds_sum WHERE bucket >= to_timestamp(%s)",
            (ONSET,),
        )
        write_rows(conn, [JobEvent("c", "j", "job.schedule", ONSET, hostile)])
    for width in (1280, 390):
        page.show(width, 800, dark=False)
        page.open(f"{base}/job?cluster=c&job_id=j")
        page.wait_for("document.querySelector('[data-changes] li') !== null")
        text = page.run("document.querySelector('[data-changes]').innerText")
        assert re.search(r"\d\d:\d\d:\d\d UTC: 1\.20×, from 2\.2\d+ s to 2\.6\d+ s", text)
        assert (
            f"change of schedule at {time.strftime('%H:%M:%S', time.gmtime(ONSET // 10 * 10))}: {hostile}"
            in text
        )
        link = page.run("document.querySelector('[data-changes] a').getAttribute('href')")
        assert link == f"/findings/{slow_job.id}"
        assert page.run("document.documentElement.scrollWidth") <= width
        assert page.console == []


def test_numbers_of_a_large_job_have_separated_thousands(signed_in_tab, slow_job, pool):
    """In what the script writes, too."""
    page, base = signed_in_tab
    ranks = 1024
    [step, *_], [place, *_] = steps("large"), places("large")
    few = [replace(step, rank=rank, node=f"n{rank // 8}") for rank in range(ranks)]
    with pool.connection() as conn:
        write_rows(conn, packed([*few, *(replace(place, rank=i, world_size=ranks) for i in range(ranks))]))
    page.open(f"{base}/job?cluster=c&job_id=large&from={T0 - 60:.0f}&to={T0 + 600:.0f}")
    page.wait_for(READY)
    assert "1,024 ranks, " in page.run("document.querySelector('[data-heat] output').textContent")
    assert "1024 ranks" not in page.run("document.body.innerText")


def test_keys_move_open_and_acknowledge(signed_in_tab, slow_job):
    """Without a mouse: to the finding, into its form, and the note that was typed is stored."""
    page, base = signed_in_tab
    page.open(f"{base}/findings")
    page.press("j")
    assert page.run("document.activeElement.getAttribute('href')") == f"/findings/{slow_job.id}"
    page.press("a")
    page.wait_for(f"location.pathname === '/findings/{slow_job.id}'")
    page.wait_for("document.activeElement?.id === 'ack-note'")
    for key in "on it":
        page.press(key)
    page.run("document.activeElement.form.requestSubmit()")
    page.wait_for("location.search === '?done=acknowledge' && document.readyState === 'complete'")
    assert "on it" in page.run("document.getElementById('history').parentElement.innerText")
    assert page.console == []


def test_a_finding_arrives_on_the_open_page(signed_in_tab, save_finding, add_nodes):
    """The server's event makes the front page fetch it: nobody reloads."""
    page, base = signed_in_tab
    add_nodes("n1")
    page.open(f"{base}/")
    assert "No open finding" in page.run("document.body.innerText")
    page.wait_for(
        "document.querySelector('[sse-connect]')['htmx-internal-data'].sseEventSource.readyState === 1"
    )
    page.run(
        "document.getElementById('now').addEventListener('sse:finding.opened', () => { window.came = true; })"
    )
    stored = save_finding(node="n1")
    page.wait_for("window.came === true")
    page.wait_for(f"document.querySelector('a[href=\"/findings/{stored.id}\"]') !== null")
    assert page.console == []
