"""The API of Alertmanager over findings and silences: answers, filters, keys and clusters."""

import base64
from datetime import UTC, datetime, timedelta

import pytest

from alerts.silence import ALERT_LABELS
from api.delivery.receivers.alertmanager import ALERTNAME, alert_labels
from tests.api.delivery.receivers.test_receivers import HOSTILE

ALERTS, SILENCES = "/api/v2/alerts", "/api/v2/silences"


def posted(*matchers, hours=1.0, **fields):
    now = datetime.now(UTC)
    conditions = [{"name": n, "value": v, "isRegex": False, "isEqual": True} for n, v in matchers]
    times = {"startsAt": now.isoformat(), "endsAt": (now + timedelta(hours=hours)).isoformat()}
    return {"matchers": conditions, "createdBy": "ann", "comment": "new cooling"} | times | fields


def nodes(client, **params):
    answer = client.get(ALERTS, params=params)
    assert answer.status_code == 200, answer.text
    return sorted(alert["labels"]["node"] for alert in answer.json())


def test_an_alert_is_a_live_finding(client, save_finding):
    """With labels, annotations, times and the page; what has ended, is suspected or in shadow is none."""
    live = save_finding(node="live")
    for node, status in (("over", "resolved"), ("maybe", "suspected")):
        save_finding(node=node, status=status, resolved_at=live.onset + 60 if status == "resolved" else None)
    save_finding(node="shadow", shadow=True)
    [alert] = client.get(ALERTS).json()
    assert alert["labels"] == {
        "alertname": "SlowrankFinding",
        "source": "slowrank",
        "cluster": "prod-a",
        "finding_id": live.id,
        "severity": "critical",
        "kind": "straggler.fail_slow",
        "node": "live",
        "gpu": "5",
        "job_id": "812345",
    }
    assert alert["annotations"]["summary"] == live.title
    assert alert["generatorURL"] == f"http://slowrank.example.org/findings/{live.id}"
    assert alert["status"] == {"state": "active", "silencedBy": [], "inhibitedBy": [], "mutedBy": []}
    assert alert["receivers"] == [{"name": "slowrank"}]
    assert alert["startsAt"] == live.to_json()["onset"]
    ends_in = datetime.fromisoformat(alert["endsAt"]) - datetime.now(UTC)
    assert timedelta(minutes=5) < ends_in <= timedelta(minutes=6)
    [group] = client.get(f"{ALERTS}/groups").json()
    assert (group["labels"], group["receiver"]) == ({"cluster": "prod-a"}, {"name": "slowrank"})
    assert [one["fingerprint"] for one in group["alerts"]] == [alert["fingerprint"]]


def test_the_labels_of_every_finding_are_those_of_its_alerts():
    """Silences and alerts name them in two packages that do not import each other."""
    assert alert_labels({}) == ALERT_LABELS
    assert ALERT_LABELS["alertname"] == ALERTNAME


def test_filters_are_matchers(client, save_finding):
    """All operators, quoted as amtool sends them or not; a label that is not there is empty."""
    for node, severity in (("n1", "critical"), ("n2", "error"), ('n"3', "error")):
        save_finding(node=node, severity=severity)
    assert nodes(client, filter='node="n1"') == ["n1"]
    assert nodes(client, filter="node=n1") == ["n1"]
    assert nodes(client, filter='node="n\\"3"') == ['n"3']
    assert nodes(client, filter='node!="n1"') == ['n"3', "n2"]
    assert nodes(client, filter='node=~"n[12]"') == ["n1", "n2"]
    assert nodes(client, filter='node!~"n[12]"') == ['n"3']
    assert nodes(client, filter=['severity="error"', 'node=~"n2|n1"']) == ["n2"]
    assert nodes(client, filter='rack=""') == ['n"3', "n1", "n2"]
    assert nodes(client, filter='alertname="Other"') == []
    assert nodes(client, receiver="slowrank") == ['n"3', "n1", "n2"]
    assert nodes(client, receiver="other") == []


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("node", 422),
        ("=x", 422),
        ('node="x', 409),
        ("node=~[", 409),
        ("node=~(a+)+", 409),
        ("node=~(?i)x", 409),
    ],
)
def test_a_filter_that_is_none_is_refused(client, text, status):
    """With the reason; a slow regex as well."""
    for path in (ALERTS, f"{ALERTS}/groups", SILENCES):
        assert client.get(path, params={"filter": text}).status_code == status


def test_filters_that_take_too_long_are_ended(client, save_finding, monkeypatch):
    """A regex is bounded for one alert, and all of them for a request."""
    save_finding(node="n1")
    monkeypatch.setattr("api.alertmanager.alerts.MATCHING_SECONDS", -1.0)
    answer = client.get(ALERTS, params={"filter": 'node=~"n.*"'})
    assert (answer.status_code, answer.json()["title"]) == (503, "Query too long")


def test_a_silence_suppresses_its_alerts(client, save_finding):
    """Made of all labels of an alert, as Grafana does it; read back, changed, and expired."""
    save_finding(node="n1")
    save_finding(node="n2")
    [labels] = [a["labels"] for a in client.get(ALERTS).json() if a["labels"]["node"] == "n1"]
    made = client.post(SILENCES, json=posted(*labels.items(), unknown="of a later release"))
    assert made.status_code == 200, made.text
    silence = made.json()["silenceID"]
    assert (nodes(client, active="false"), nodes(client, silenced="false")) == (["n1"], ["n2"])
    [state] = [a["status"] for a in client.get(ALERTS).json() if a["labels"]["node"] == "n1"]
    assert (state["state"], state["silencedBy"]) == ("suppressed", [silence])

    [read] = client.get(SILENCES).json()
    assert read == client.get(f"/api/v2/silence/{silence}").json()
    assert {m["name"]: m["value"] for m in read["matchers"]} == labels
    assert (read["status"], read["comment"]) == ({"state": "active"}, "new cooling")
    assert read["createdBy"].startswith("ann (")
    assert [s["id"] for s in client.get("/api/v1/silences").json()["items"]] == [silence]

    changed = client.post(SILENCES, json=posted(("node", "n2"), id=silence, comment="another"))
    assert changed.json() == {"silenceID": silence}
    assert nodes(client, active="false") == ["n2"]
    assert client.delete(f"/api/v2/silence/{silence}").status_code == 200
    assert nodes(client, active="false") == []
    assert client.get(f"/api/v2/silence/{silence}").json()["status"] == {"state": "expired"}
    again = client.post(SILENCES, json=posted(("node", "n2"), id=silence))
    assert again.json()["silenceID"] != silence
    assert len(client.get(SILENCES).json()) == 2


def test_silences_are_filtered_by_their_matchers(client):
    """As amtool asks: by the value of the matcher of that label."""
    for node in ("n1", "n2"):
        client.post(SILENCES, json=posted(("node", node), ("cluster", "c")))

    def found(*filters):
        return len(client.get(SILENCES, params={"filter": list(filters)}).json())

    assert [found('node="n1"'), found('node=~"n.*"', 'cluster="c"'), found('rack="r"')] == [1, 2, 0]


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"matchers": []}, 422),
        ({"comment": ""}, 422),
        ({"matchers": [{"name": "nodes", "value": "n1"}]}, 422),
        ({"matchers": [{"name": "node", "value": "(a+)+", "isRegex": True}]}, 409),
        ({"endsAt": "2020-01-01T00:00:00Z"}, 409),
        ({"endsAt": "2020-01-01T00:00:00"}, 422),
        ({"id": "sil_01JD7Q4Y6R8V2M3K5N9P0S1T2W"}, 404),
    ],
)
def test_a_silence_that_cannot_be_is_refused(client, change, status):
    """Without a label of findings, a reason, or an end to come; for an id that is not there."""
    assert client.post(SILENCES, json=posted(("node", "n1")) | change).status_code == status
    assert client.get(SILENCES).json() == []


def test_a_key_sees_and_silences_its_clusters_only(client, client_with, save_finding):
    """What lies outside does not exist for it."""
    save_finding(node="a", cluster="prod-a")
    save_finding(node="b", cluster="prod-b")
    outside = client.post(SILENCES, json=posted(("node", "b"))).json()["silenceID"]
    limited = client_with("findings:read", "findings:write", clusters=("prod-a",))
    assert nodes(limited) == ["a"]
    assert [group["labels"] for group in limited.get(f"{ALERTS}/groups").json()] == [{"cluster": "prod-a"}]
    assert limited.get(SILENCES).json() == []
    for method in ("GET", "DELETE"):
        assert limited.request(method, f"/api/v2/silence/{outside}").status_code == 404
    assert limited.post(SILENCES, json=posted(("node", "a"))).status_code == 403
    assert limited.post(SILENCES, json=posted(("cluster", "prod-b"))).status_code == 403
    assert limited.post(SILENCES, json=posted(("cluster", "prod-a"), id=outside)).status_code == 404
    assert limited.post(SILENCES, json=posted(("cluster", "prod-a"))).status_code == 200


def basic(password, user="grafana"):
    text = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"authorization": f"Basic {text}"}


def test_a_key_may_be_the_password_here_and_nowhere_else(client_with, new_token):
    """For tools that cannot send a bearer token; what is no key is a 401, rate-limited like others."""
    anonymous, token = client_with(), new_token("findings:read")
    assert anonymous.get(ALERTS, headers=basic(token)).status_code == 200
    assert anonymous.get(ALERTS, headers=basic(token, user="")).status_code == 200
    assert anonymous.get("/api/v1/findings", headers=basic(token)).status_code == 401
    assert anonymous.post(SILENCES, headers=basic(token), json=posted(("node", "n"))).status_code == 403
    for wrong in (basic("srk_x_y"), basic(""), {"authorization": "Basic"}, {"authorization": "Basic !!"}):
        answer = anonymous.get(ALERTS, headers=wrong)
        assert answer.status_code == 401, wrong
        assert answer.headers["content-type"] == "application/problem+json"


def test_status_and_receivers_name_what_there_is(client):
    """The fields that Alertmanager's clients require."""
    status = client.get("/api/v2/status").json()
    assert (status["cluster"]["status"], status["config"]["original"][:6]) == ("disabled", "route:")
    assert set(status["versionInfo"]) >= {
        "version",
        "revision",
        "branch",
        "buildUser",
        "buildDate",
        "goVersion",
    }
    assert client.get("/api/v2/receivers").json() == [{"name": "slowrank"}]


def test_hostile_text_is_data(client, save_finding):
    """In labels, annotations, comments and names: JSON gives it back as it was stored."""
    title = HOSTILE.replace("\x00", "")
    save_finding(title=title)
    assert client.get(ALERTS).json()[0]["annotations"]["summary"] == title
    body = posted(("node", title), comment=title, createdBy=title)
    assert client.post(SILENCES, json=body).status_code == 200
    [read] = client.get(SILENCES).json()
    assert (read["matchers"][0]["value"], read["comment"]) == (title, title)
    assert read["createdBy"].startswith(title)


def test_an_unchanged_list_is_not_sent_again(client, save_finding):
    """Within a minute."""
    save_finding()
    first = client.get(ALERTS)
    tags = {
        client.get(ALERTS, headers={"if-none-match": first.headers["etag"]}).status_code for _ in range(2)
    }
    # 200 where a minute begins in between.
    assert 304 in tags
