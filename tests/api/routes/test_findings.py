"""Findings over HTTP, on a real database."""

import threading
from datetime import UTC, datetime, timedelta

import pytest

from api.finding_schema import finding_schema

URL = "/api/v1/findings"


def ids(answer):
    assert answer.status_code == 200, answer.text
    return [item["id"] for item in answer.json()["items"]]


def test_a_saved_finding_is_served_whole(client, save_finding):
    """The list and the detail hold the finding.v1 object, with nothing the schema does not know."""
    saved = save_finding()
    (item,) = client.get(URL).json()["items"]
    detail = client.get(f"{URL}/{saved.id}").json()

    assert item.items() >= {"id": saved.id, "schema": "finding.v1", "title": saved.title}.items()
    assert detail["history"][0]["event"] == "finding.opened"
    assert set(detail) <= set(finding_schema("x")["properties"])


def test_a_silenced_finding_says_by_what_and_until_when(client, save_finding):
    """In the list and by itself, from the silence on and until it ends; ended findings are not silenced."""
    muted, other = save_finding(node="n1"), save_finding(node="n2")
    ended = save_finding(node="n1", gpu=1, status="resolved", resolved_at=muted.onset + 1)
    tag = client.get(f"{URL}/{muted.id}").headers["etag"]
    until = (datetime.now(UTC) + timedelta(hours=2)).strftime("%Y-%m-%dT%H:%M:%SZ")
    body = {
        "matchers": [{"name": "node", "value": "n1"}],
        "endsAt": until,
        "comment": "new cooling",
    }
    silence = client.post("/api/v1/silences", json=body).json()["id"]

    shown = {item["id"]: item for item in client.get(URL).json()["items"]}
    fields = ("silenced_by", "silenced_until")
    assert [shown[muted.id].get(name) for name in fields] == [silence, until]
    assert not any(name in shown[one.id] for one in (other, ended) for name in fields)
    detail = client.get(f"{URL}/{muted.id}", headers={"if-none-match": tag})
    assert (detail.status_code, detail.json()["silenced_by"]) == (200, silence)
    assert (
        client.get(f"{URL}/{muted.id}", headers={"if-none-match": detail.headers["etag"]}).status_code == 304
    )

    assert client.delete(f"/api/v1/silences/{silence}").status_code == 204
    assert "silenced_by" not in client.get(f"{URL}/{muted.id}").json()
    acknowledged = {"status": "acknowledged"}
    stale = client.patch(f"{URL}/{muted.id}", json=acknowledged, headers={"if-match": detail.headers["etag"]})
    assert stale.status_code == 412
    assert client.patch(f"{URL}/{muted.id}", json=acknowledged, headers={"if-match": tag}).status_code == 200


def test_suspicions_are_listed_only_when_asked_for(client, save_finding):
    """What is not corroborated yet is not shown by default."""
    suspected = save_finding(status="suspected")
    assert ids(client.get(URL)) == []
    assert ids(client.get(URL, params={"status": "suspected"})) == [suspected.id]


def test_findings_in_shadow_are_listed_only_when_asked_for(client, save_finding):
    """Alone or beside the others; what people say about one is kept like theirs."""
    plain, marked = save_finding(), save_finding(node="n2", shadow=True)
    assert ids(client.get(URL)) == [plain.id]
    assert ids(client.get(URL, params={"shadow": "true"})) == [marked.id]
    assert set(ids(client.get(URL, params={"shadow": "all"}))) == {plain.id, marked.id}
    assert client.get(URL, params={"shadow": "maybe"}).status_code == 422
    url, resolved = f"{URL}/{marked.id}", {"status": "resolved"}
    assert client.patch(url, json=resolved, headers={"if-match": "*"}).json()["shadow"] is True


def test_every_filter_selects(client, save_finding):
    """Each filter finds what it names and leaves the rest out."""
    one = save_finding(node="n1", cluster="a", severity="critical", confidence=0.99)
    other = save_finding(
        node="n2",
        cluster="b",
        severity="warning",
        kind="throttle.thermal",
        confidence=0.5,
        onset=one.onset - 7200,
    )
    for params in (
        {"node": "n1"},
        {"cluster": "a"},
        {"severity": "critical"},
        {"kind": "straggler"},
        {"kind": "straggler.fail_slow"},
        {"min_confidence": 0.9},
        {"from": "-1h"},
    ):
        assert ids(client.get(URL, params=params)) == [one.id], params
    assert ids(client.get(URL, params={"to": "-1h"})) == [other.id]
    assert set(ids(client.get(URL, params={"node": ["n1", "n2"], "job_id": "812345"}))) == {one.id, other.id}
    assert ids(client.get(URL, params={"job_id": "1"})) == []


@pytest.mark.parametrize(
    "params",
    [
        {"status": "broken"},
        {"severity": "bad"},
        {"limit": 0},
        {"limit": 1001},
        {"min_confidence": 2},
        {"from": "yesterday"},
        {"from": "2026-11-20T07:00:00"},
        {"nonsense": "1"},
        {"node": "x" * 1025},
        {"sort": "cost"},
    ],
)
def test_bad_parameters_are_named(client, params):
    """A parameter that cannot be is a 422 problem that points at it."""
    answer = client.get(URL, params=params)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"].startswith("#/query")


@pytest.mark.parametrize("params", [{"from": "-1h", "to": "-2h"}, {"cursor": "x"}])
def test_parameters_that_contradict_each_other_are_named(client, params):
    """Each is well formed, and together they are a 409 that points at one of them."""
    answer = client.get(URL, params=params)
    assert answer.status_code == 409
    assert answer.json()["errors"][0]["pointer"].startswith("#/query")


@pytest.mark.parametrize("sort", [None, "-cost", "-onset", "-detected_at", "-updated_at", "-severity"])
def test_pages_join_without_gap_or_repeat(client, save_finding, sort):
    """Following next_cursor gives every finding once, whatever the order and however many are alike."""
    saved = {save_finding(node=f"n{i}", gpu_hours_lost_per_hour=float(i % 3)).id for i in range(11)}
    seen, cursor = [], None
    while True:
        params = {"limit": 4} | ({"cursor": cursor} if cursor else {}) | ({"sort": sort} if sort else {})
        answer = client.get(URL, params=params)
        seen += ids(answer)
        assert answer.json()["total_estimate"] == 11
        cursor = answer.json()["next_cursor"]
        assert bool(cursor) == ('rel="next"' in answer.headers.get("link", ""))
        if not cursor:
            break
    assert len(seen) == 11
    assert set(seen) == saved


def test_information_that_is_rather_wrong_is_not_dear(client, save_finding):
    """As a stop that may be the end of its job: by cost it comes after what costs anything, on any page."""
    of = {"sure": ("info", 0.5, 28.0), "unsure": ("info", 0.26, 90.0), "slow": ("warning", 0.26, 3.0)}
    saved = {
        save_finding(node=node, severity=severity, confidence=sure, gpu_hours_lost_per_hour=rate).id: node
        for node, (severity, sure, rate) in of.items()
    }
    first = client.get(URL, params={"limit": 2, "sort": "-cost"})
    rest = client.get(URL, params={"limit": 2, "sort": "-cost", "cursor": first.json()["next_cursor"]})
    assert [saved[i] for i in (*ids(first), *ids(rest))] == ["sure", "slow", "unsure"]


def test_a_cursor_is_good_for_its_filters_alone(client, client_with, save_finding):
    """A changed cursor, other filters, or another key's clusters: 409, never a wrong page."""
    for i in range(3):
        save_finding(node=f"n{i}", cluster="a")
    cursor = client.get(URL, params={"limit": 1, "cluster": "a"}).json()["next_cursor"]
    assert len(ids(client.get(URL, params={"limit": 2, "cluster": "a", "cursor": cursor}))) == 2

    changed = cursor[:-2] + ("AA" if cursor[-2:] != "AA" else "BB")
    limited = client_with("findings:read", clusters=("a",))
    for who, params in (
        (client, {"cluster": "a", "cursor": changed}),
        (client, {"cluster": "a", "cursor": cursor + "A"}),
        (client, {"cluster": "b", "cursor": cursor}),
        (client, {"cursor": cursor}),
        (limited, {"cluster": "a", "cursor": cursor}),
    ):
        assert who.get(URL, params=params).status_code == 409


def test_a_key_sees_its_clusters_only(client_with, save_finding):
    """A finding of another cluster does not exist for a limited key."""
    mine, other = save_finding(cluster="a"), save_finding(cluster="b")
    limited = client_with("findings:read", "findings:write", clusters=("a",))

    assert ids(limited.get(URL)) == [mine.id]
    assert ids(limited.get(URL, params={"cluster": "b"})) == []
    assert limited.get(f"{URL}/{other.id}").status_code == 404
    hidden = limited.patch(f"{URL}/{other.id}", json={"status": "resolved"}, headers={"if-match": "*"})
    assert hidden.status_code == 404
    assert limited.post(f"{URL}/{other.id}/feedback", json={"verdict": "benign"}).status_code == 404


def test_an_unchanged_answer_costs_no_body(client, save_finding):
    """If-None-Match gives 304 until something changes."""
    saved = save_finding()
    for url in (URL, f"{URL}/{saved.id}"):
        first = client.get(url)
        again = client.get(url, headers={"if-none-match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    save_finding(node="another")
    assert client.get(URL, headers={"if-none-match": first.headers["etag"]}).status_code == 200


def test_acknowledge_then_resolve(client, save_finding):
    """People move a finding through its life, with who, when and why kept."""
    saved = save_finding()
    url = f"{URL}/{saved.id}"
    tag = client.get(url).headers["etag"]
    acknowledged = client.patch(
        url, json={"status": "acknowledged", "note": "on it"}, headers={"if-match": tag}
    )
    assert acknowledged.status_code == 200, acknowledged.text
    assert acknowledged.json()["status"] == "acknowledged"
    assert acknowledged.json()["acknowledged"]["note"] == "on it"

    resolved = client.patch(
        url, json={"status": "resolved"}, headers={"if-match": acknowledged.headers["etag"]}
    )
    assert resolved.json()["status"] == "resolved"
    assert [step["event"] for step in resolved.json()["history"]] == [
        "finding.opened",
        "finding.acknowledged",
        "finding.resolved",
    ]
    actions = [e["action"] for e in client.get("/api/v1/audit").json()["items"]]
    assert actions == ["finding.resolved", "finding.acknowledged"]


def test_a_change_needs_the_state_it_was_decided_on(client, save_finding):
    """Without If-Match 428, with an old one 412, with an impossible step 409."""
    saved = save_finding()
    url, body = f"{URL}/{saved.id}", {"status": "acknowledged"}
    tag = client.get(url).headers["etag"]
    assert client.patch(url, json=body).status_code == 428
    assert client.patch(url, json=body, headers={"if-match": tag}).status_code == 200
    assert client.patch(url, json=body, headers={"if-match": tag}).status_code == 412
    assert client.patch(url, json=body, headers={"if-match": "*"}).status_code == 409


def test_of_two_at_once_one_wins(client, client_with, save_finding):
    """Two people with the same ETag at the same time: one change, one 412."""
    saved = save_finding()
    url = f"{URL}/{saved.id}"
    tag = client.get(url).headers["etag"]
    codes = []

    def move(who, status):
        codes.append(who.patch(url, json={"status": status}, headers={"if-match": tag}).status_code)

    writers = [client_with("findings:write"), client_with("findings:write")]
    threads = [
        threading.Thread(target=move, args=pair)
        for pair in zip(writers, ["acknowledged", "resolved"], strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(codes) == [200, 412]


def test_feedback_is_kept_and_counted(client, save_finding):
    """The last verdict stands on the finding and in the metrics."""
    saved = save_finding()
    url = f"{URL}/{saved.id}"
    for verdict in ("true_positive", "false_positive"):
        answer = client.post(f"{url}/feedback", json={"verdict": verdict, "note": "looked"})
        assert answer.status_code == 201
    assert client.get(url).json()["feedback"]["verdict"] == "false_positive"
    assert client.post(f"{url}/feedback", json={"verdict": "maybe"}).status_code == 422
    assert 'slowrank_feedback_total{verdict="false_positive"} 1.0' in client.get("/metrics").text


HOSTILE = "\x00</script>\u202e'; drop table findings; --\r\nX: 1 {{7*7}} 🔥" * 3


def test_hostile_strings_come_back_as_data(client, save_finding):
    """Whatever stands in names and notes is stored and served as text, and finds itself again."""
    saved = save_finding(node=HOSTILE, title=HOSTILE[:120])
    url = f"{URL}/{saved.id}"
    got = client.get(url)
    assert got.json()["subject"]["node"] == HOSTILE.replace("\x00", "\ufffd")
    moved = client.patch(
        url, json={"status": "acknowledged", "note": "\x00<b>" * 9}, headers={"if-match": "*"}
    )
    assert moved.status_code == 200
    assert moved.headers["content-type"] == "application/json"
    assert ids(client.get(URL, params={"node": HOSTILE[:100]})) == []
