"""Findings as bars: where they stand, in which rows, in which window."""

import re
import time

import pytest

HOUR = 3600.0


def bars(text):
    """Return by row the position, width and class of its bars."""
    rows = re.findall(r'<span role="rowheader">([^<]*)</span>(.*?)</svg>', text, re.S)
    found = r'<rect class="([^"]*)" x="([\d.]+)" y="1" width="([\d.]+)"'
    return {name: [(c, float(x), float(w)) for c, x, w in re.findall(found, lane)] for name, lane in rows}


def test_a_bar_lasts_from_onset_to_end(signed_in, save_finding):
    """On an axis of 1000 units; what began before the window begins at its edge, what is open ends now."""
    now = time.time()
    save_finding(node="n1", onset=now - 12 * HOUR, status="resolved", resolved_at=now - 6 * HOUR)
    save_finding(node="n2", onset=now - 30 * HOUR, severity="warning")
    save_finding(node="n3", onset=now - 40 * HOUR, status="resolved", resolved_at=now - 30 * HOUR)
    shown = bars(signed_in().get("/timeline?since=1d").text)
    assert shown.keys() == {"n1", "n2"}
    ((name, x, width),) = shown["n1"]
    assert (name, x, width) == ("critical", pytest.approx(500, abs=2), pytest.approx(250, abs=2))
    ((name, x, width),) = shown["n2"]
    assert (name, x, width) == ("warning live", 0, pytest.approx(1000, abs=1))


def test_without_a_window_it_begins_shortly_before_the_first_finding(signed_in, save_finding):
    """A demo of an hour fills the axis; what is older than a day begins at its edge."""
    browser, now = signed_in(), time.time()
    save_finding(node="n1", onset=now - HOUR, status="resolved", resolved_at=now - HOUR / 2)
    ((_, x, width),) = bars(browser.get("/timeline").text)["n1"]
    assert (x, width) == (pytest.approx(1000 * 0.05 / 1.05, abs=2), pytest.approx(500 / 1.05, abs=3))
    ((_, x, width),) = bars(browser.get("/timeline?since=1d").text)["n1"]
    assert (x, width) == (pytest.approx(1000 * 23 / 24, abs=2), pytest.approx(500 / 24, abs=2))

    save_finding(node="n2", onset=now - 30 * HOUR)
    shown = bars(browser.get("/timeline").text)
    assert shown["n1"][0][1] == pytest.approx(1000 * 23 / 24, abs=2)
    assert shown["n2"][0][1:] == (0, pytest.approx(1000, abs=1))


def test_the_first_seconds_are_not_stretched(signed_in, save_finding):
    """A finding of just now stands on an axis of ten minutes."""
    save_finding(node="n1", onset=time.time() - 60)
    ((_, x, width),) = bars(signed_in().get("/timeline").text)["n1"]
    assert (x, width) == (pytest.approx(900, abs=10), pytest.approx(100, abs=10))


def test_a_short_finding_is_still_seen(signed_in, save_finding):
    """Two units wide, inside the axis."""
    now = time.time()
    save_finding(node="n1", onset=now - 5, status="resolved", resolved_at=now - 1)
    ((_, x, width),) = bars(signed_in().get("/timeline?since=28d").text)["n1"]
    assert width == 2
    assert x + width <= 1000


@pytest.mark.parametrize(
    ("group", "row"), [("node", "n1"), ("job", "812345"), ("kind", "straggler.fail_slow")]
)
def test_rows_are_nodes_jobs_or_kinds(signed_in, save_finding, group, row):
    """As the address says."""
    save_finding(node="n1")
    assert bars(signed_in().get(f"/timeline?group={group}").text).keys() == {row}


def test_findings_about_no_node_have_a_row(signed_in, save_finding):
    """As that of a job which stands still."""
    save_finding(node=None)
    assert bars(signed_in().get("/timeline").text).keys() == {"no node"}


def test_rows_are_ordered_by_the_numbers_in_their_names(signed_in, save_finding):
    """n2 before n10, as on the page of the fleet."""
    for name in ("n10", "n2", "n100", "n1"):
        save_finding(node=name)
    assert list(bars(signed_in().get("/timeline").text)) == ["n1", "n2", "n10", "n100"]


def test_many_rows_are_those_of_the_gravest_and_latest_findings(signed_in, save_finding, monkeypatch):
    """In the order of their names; the page says how many are left out."""
    monkeypatch.setattr("api.pages.routes.timeline.MAX_ROWS", 3)
    now = time.time()
    for name, severity, age in (
        ("n1", "info", 10),
        ("n2", "critical", 500),
        ("n3", "warning", 400),
        ("n4", "warning", 300),
        ("n5", "error", 600),
    ):
        save_finding(node=name, severity=severity, onset=now - age)
    text = signed_in().get("/timeline").text
    assert list(bars(text)) == ["n2", "n4", "n5"]
    assert "2 rows whose findings are less grave or older are left out" in text


def test_earlier_and_later_lead_through_time(signed_in, save_finding):
    """An ended finding is on the page before the one where it no longer is."""
    now = time.time()
    old = save_finding(node="n1", onset=now - 30 * HOUR, status="resolved", resolved_at=now - 29 * HOUR)
    browser = signed_in()
    first = browser.get("/timeline")
    assert old.id not in first.text
    assert "No finding was open then" in first.text
    earlier = re.search(r'href="([^"]*)" rel="prev"', first.text)
    assert earlier
    second = browser.get(earlier[1].replace("&amp;", "&"))
    assert old.id in second.text
    assert 'rel="next"' in second.text


def test_a_key_of_one_cluster_sees_its_bars(signed_in, save_finding):
    """Also when it names another."""
    save_finding(node="n1", cluster="b")
    browser = signed_in("findings:read", clusters=("a",))
    for path in ("/timeline", "/timeline?cluster=b"):
        assert bars(browser.get(path).text) == {}


@pytest.mark.parametrize(
    "to", ["yesterday", "\x00", "9999-99-99", "2999-01-01T00:00:00Z", "0001-01-01T00:00:00Z"]
)
def test_a_time_that_is_none_is_now(signed_in, save_finding, to):
    """No error; a time to come is now as well."""
    save_finding(node="n1")
    answer = signed_in().get("/timeline", params={"to": to})
    assert answer.status_code == 200
