"""What is a key, how often it may ask, and whose name it gives to what it does."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from api.app import create_app


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Basic dXNlcjpwYXNz",
        "Bearer",
        "Bearer ",
        "Bearer srk_",
        "Bearer srk_abc_def",
        "Bearer x" + "y" * 5000,
        "Bearer srk_'; drop table api_keys; --_x",
        "Bearer srk_\u00e9_\u00e9",
    ],
)
def test_what_is_no_key(client_with, header):
    """Nonsense in Authorization is 401, never an error."""
    answer = client_with().get("/api/v1/findings", headers={"authorization": header.encode("latin-1")})
    assert answer.status_code == 401


def test_a_wrong_secret_a_revoked_and_an_expired_key(app, client_with, new_token):
    """Only the genuine, living key opens."""
    token = new_token("findings:read")
    forged = token[:-1] + ("0" if token[-1] != "0" else "1")
    expired = new_token("findings:read", expires_at=datetime.now(UTC) - timedelta(seconds=1))
    for given, status in ((token, 200), (forged, 401), (expired, 401)):
        anonymous = client_with()
        answer = anonymous.get("/api/v1/findings", headers={"authorization": f"Bearer {given}"})
        assert answer.status_code == status


def test_metrics_open_by_setting_only(settings, pool, client_with, client):
    """/metrics needs metrics:read unless the operator says otherwise."""
    assert client_with("metrics:read").get("/metrics").status_code == 200
    public = create_app(settings.model_copy(update={"api_metrics_public": True}), pool)
    anonymous = type(client)(public)
    assert b"slowrank_build_info" in anonymous.get("/metrics").content
    assert anonymous.get("/api/v1/findings").status_code == 401


@pytest.fixture
def standing_clock(app):
    """No time passes for the rates, however long the requests take: no token comes back."""
    app.state.services = replace(app.state.services, monotonic=lambda: 0.0)


@pytest.mark.usefixtures("standing_clock")
def test_a_key_has_a_rate(client_with):
    """A key may read 60 times at once and is then told when to come again."""
    reader = client_with("findings:read")
    codes = [reader.get("/api/v1/schemas/finding.v1.json").status_code for _ in range(90)]
    assert codes == [200] * 60 + [429] * 30
    limited = reader.get("/api/v1/schemas/finding.v1.json")
    assert int(limited.headers["retry-after"]) >= 1
    assert limited.headers["ratelimit"] == '"r";r=0;t=3'
    assert limited.headers["ratelimit-policy"] == '"r";q=60;w=3'


@pytest.mark.usefixtures("standing_clock")
def test_a_key_that_sends_too_often_is_told_to_send_more_at_once(client_with):
    """Twenty bodies at once, whatever is in them; the answer says what to do."""
    writer = client_with("telemetry:write")
    answers = [writer.post("/api/v1/ingest/samples", content=b" ") for _ in range(21)]
    assert [answer.status_code for answer in answers] == [422] * 20 + [429]
    limited = answers[-1]
    assert int(limited.headers["retry-after"]) >= 1
    assert "of all ranks and devices of a node in one POST a second" in limited.json()["detail"]


@pytest.mark.usefixtures("standing_clock")
def test_guessing_keys_has_a_rate(client_with):
    """Failed keys from one address run into 429 after 20."""
    guesser = client_with()
    codes = [
        guesser.get("/api/v1/findings", headers={"authorization": f"Bearer srk_x_{i}"}).status_code
        for i in range(25)
    ]
    assert set(codes[:20]) == {401}
    assert 429 in codes


def test_people_are_named_by_their_keys(app, new_token, save_finding, client_with):
    """Whoever acknowledges is served by the key's name, in the finding, its history and the audit log."""
    finding, writer = save_finding(), client_with("findings:read", "findings:write")
    url = f"/api/v1/findings/{finding.id}"
    done = writer.patch(url, json={"status": "acknowledged"}, headers={"if-match": "*"}).json()
    assert done["acknowledged"]["by"] == "test"
    assert done["history"][-1]["actor"] == "test"
    entry = client_with("keys:admin").get("/api/v1/audit").json()["items"][0]
    assert entry["actor"] == "test"
    assert entry["key_id"] == writer.headers["authorization"].split("_")[1]
