"""The list of findings and the front page."""

import pytest

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'; DROP TABLE findings; --",
    "{{ 7 * 7 }}{% raw %}",
    "\u202egnp.exe",
    "a\r\nset-cookie: x=y",
    "\x00\x1b[31m",
    "x" * 5000,
)


def test_the_most_expensive_open_finding_is_first(signed_in, save_finding):
    """On the list and on the front page; ended ones are elsewhere."""
    cheap = save_finding(node="n1", gpu_hours_lost_per_hour=1.0)
    dear = save_finding(node="n2", gpu_hours_lost_per_hour=900.0)
    ended = save_finding(node="n3", status="resolved", resolved_at=1.8e9)
    browser = signed_in("findings:read")
    for path in ("/", "/findings"):
        text = browser.get(path).text
        assert 0 < text.index(dear.id) < text.index(cheap.id)
        assert ended.id not in text
    text = browser.get("/findings?status=ended").text
    assert ended.id in text
    assert dear.id not in text


def test_lists_show_which_findings_a_silence_mutes(signed_in, save_finding):
    """On the list and the front page: it looks like any other, and nothing is sent of it."""
    muted, other = save_finding(node="n1"), save_finding(node="n2")
    browser = signed_in()
    browser.submit(f"/findings/{muted.id}/silence", what="node", hours="4", comment="new fans")
    for path in ("/", "/findings"):
        rows = browser.get(path).text.split("<tr data-row")[1:]
        shown = {one.id: any(one.id in row and ">silenced<" in row for row in rows) for one in (muted, other)}
        assert shown == {muted.id: True, other.id: False}, path


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("node=n1", "n1"),
        ("severity=warning", "n2"),
        ("kind=straggler&node=n1", "n1"),
        ("cluster=prod-b", "n3"),
        ("job_id=812345&cluster=prod-b", "n3"),
    ],
)
def test_the_address_filters(signed_in, save_finding, query, found):
    """One of three findings matches."""
    stored = {
        "n1": save_finding(node="n1"),
        "n2": save_finding(node="n2", severity="warning", kind="clock.low"),
        "n3": save_finding(node="n3", cluster="prod-b", kind="clock.low"),
    }
    text = signed_in().get(f"/findings?{query}").text
    assert {name for name, finding in stored.items() if finding.id in text} == {found}


def test_a_long_list_has_pages(signed_in, save_finding):
    """Every finding is on exactly one of them."""
    ids = {save_finding(node=f"n{i}", gpu_hours_lost_per_hour=float(i)).id for i in range(105)}
    browser = signed_in()
    first = browser.get("/findings").text
    following = first.split('rel="next"')[0].rpartition('href="')[2].partition('"')[0].replace("&amp;", "&")
    second = browser.get(following).text
    shown = [{one for one in ids if one in text} for text in (first, second)]
    assert [len(part) for part in shown] == [100, 5]
    assert shown[0] | shown[1] == ids
    assert browser.get(following + "x").status_code == 409


def test_a_key_of_one_cluster_sees_its_findings(signed_in, save_finding):
    """On every page that lists some."""
    mine, other = save_finding(node="n1", cluster="a"), save_finding(node="n2", cluster="b")
    browser = signed_in("findings:read", clusters=("a",))
    for path in ("/", "/findings", "/findings?cluster=b"):
        assert other.id not in browser.get(path).text
    assert mine.id in browser.get("/findings").text


def test_an_empty_list_names_the_next_command(signed_in):
    """Before the first finding, and where a filter matches none."""
    browser = signed_in()
    for path in ("/", "/findings"):
        assert "slowrank demo" in browser.get(path).text
    assert "No finding matches" in browser.get("/findings?node=none").text


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_shown_and_never_run(signed_in, save_finding, text):
    """In titles and names of findings, and in every filter."""
    finding = save_finding(title=text, node=text[:100])
    browser = signed_in()
    for path in ("/", "/findings", f"/findings/{finding.id}"):
        shown = browser.get(path)
        assert shown.status_code == 200
        harmless(shown)
    for name in ("status", "severity", "kind", "node", "job_id", "cluster", "cursor", "done", "t"):
        for path in ("/findings", f"/findings/{finding.id}", "/sign-in"):
            shown = browser.get(path, params={name: text})
            assert shown.status_code in (200, 409, 422), (path, name)
            harmless(shown)


def harmless(answer):
    assert "<script>alert" not in answer.text
    assert "<img" not in answer.text
    assert not set("\x00\x1b\u202e") & set(answer.text)
    assert {"x-frame-options", "content-security-policy"} <= answer.headers.keys()
    assert "x=y" not in answer.headers.get("set-cookie", "")


def test_the_theme_of_the_cookie_is_in_the_first_paint(signed_in):
    """Dark or light, and nothing else that a cookie may hold."""
    browser = signed_in()
    for given, shown in {"dark": True, "light": True, '"><script>': False, "": False}.items():
        browser.cookies["slowrank_theme"] = given
        assert ("data-theme=" in browser.get("/").text) is shown


def test_a_missing_database_is_a_page(signed_in, app, monkeypatch):
    """503 with where to look, as HTML."""
    import psycopg

    browser = signed_in()

    def refuse(*args, **kwargs):
        raise psycopg.OperationalError("down")

    monkeypatch.setattr("store.findings.search.find", refuse)
    answer = browser.get("/findings")
    assert answer.status_code == 503
    assert "/readyz" in answer.text
    assert answer.headers["content-type"].startswith("text/html")
