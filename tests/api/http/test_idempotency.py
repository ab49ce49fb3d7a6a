"""A POST sent again under its Idempotency-Key is carried out once, by whichever process it reaches."""

import threading
from datetime import UTC, datetime, timedelta

import pytest

from api.app import create_app
from store.access import requests
from store.access.requests import EarlierRequest, RequestKey, complete, prune, release, reserve

SILENCES = "/api/v1/silences"
NOW = datetime(2026, 11, 20, 8, 0, tzinfo=UTC)


def silence(node="n1"):
    ends = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    return {"matchers": [{"name": "node", "value": node}], "endsAt": ends, "comment": "x"}


@pytest.fixture
def other(client, settings, pool, sink):
    """A client of a second process on the same database, with the same key."""
    second = type(client)(create_app(settings, pool, sink=sink))
    second.headers = client.headers
    return second


def test_a_request_sent_again_is_answered_again(client, other):
    """The same key and body: one silence, one audit entry, the same answer, from both processes."""
    headers, body = {"idempotency-key": '"retry-1"'}, silence()
    first = client.post(SILENCES, json=body, headers=headers)
    assert first.status_code == 201
    for again in (client, other):
        answer = again.post(SILENCES, json=body, headers={"idempotency-key": "retry-1"})
        assert (answer.status_code, answer.json()) == (201, first.json())
        assert answer.headers["idempotency-replayed"] == "true"
        assert answer.headers["content-type"] == "application/json"
    assert len(client.get(SILENCES).json()["items"]) == 1
    assert len(client.get("/api/v1/audit").json()["items"]) == 1
    assert client.post(SILENCES, json=body).json()["id"] != first.json()["id"]


def test_a_key_belongs_to_one_request(client, client_with):
    """With another body, path or query it is a 422; another API key has names of its own."""
    headers, body = {"idempotency-key": "k"}, silence()
    made = client.post(SILENCES, json=body, headers=headers).json()
    for url, content in ((SILENCES, silence("n2")), ("/api/v1/keys", body)):
        answer = client.post(url, json=content, headers=headers)
        assert (answer.status_code, answer.json()["title"]) == (422, "Idempotency key reused")
    theirs = client_with("findings:write").post(SILENCES, json=body, headers=headers)
    assert theirs.status_code == 201
    assert theirs.json()["id"] != made["id"]


def test_a_request_that_failed_may_be_sent_again(client, client_with, sink):
    """A refusal and a pipeline that is away change nothing, so the key is free again."""
    headers = {"idempotency-key": "k"}
    assert client_with("findings:read").post(SILENCES, json=silence(), headers=headers).status_code == 403
    assert client.post(SILENCES, json={"comment": "x"}, headers=headers).status_code == 422
    assert client.post(SILENCES, json=silence(), headers=headers).status_code == 201
    row = f'{{"ts":{datetime.now(UTC).timestamp()},"node":"n","metric":"host.load1","value":1}}'
    sink.refusal = "Kafka is away"
    url, headers = "/api/v1/ingest/samples", {"idempotency-key": "rows"}
    assert client.post(url, content=row, headers=headers).status_code == 503
    sink.refusal = ""
    for _ in range(2):
        assert client.post(url, content=row, headers=headers).json()["accepted"] == 1
    assert len(sink.records) == 1


def test_a_secret_is_not_kept(client, pool):
    """A key or webhook is made once; a repeated request is answered with a refusal: the secret it showed is
    not stored."""
    headers = {"idempotency-key": "k"}
    body = {"name": "ci", "scopes": ["findings:read"]}
    token = client.post("/api/v1/keys", json=body, headers=headers).json()["token"]
    again = client.post("/api/v1/keys", json=body, headers=headers)
    assert (again.status_code, again.json()["title"]) == (409, "Already carried out")
    headers, body = {"idempotency-key": "w"}, {"url": "http://127.0.0.1/x"}
    secret = client.post("/api/v1/webhooks", json=body, headers=headers).json()["secret"]
    assert client.post("/api/v1/webhooks", json=body, headers=headers).status_code == 409
    assert len(client.get("/api/v1/webhooks").json()["items"]) == 1
    with pool.connection() as conn:
        kept = str(conn.execute("SELECT * FROM requests").fetchall())
    assert token not in kept
    assert secret not in kept


@pytest.mark.parametrize("name", ["", " ", "a b", "x" * 256, "é"])
def test_a_key_is_visible_ascii(client, name):
    """Anything else is a 422 that points at the header."""
    answer = client.post(SILENCES, json=silence(), headers={"idempotency-key": name.encode()})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "#/header/idempotency-key"


def test_of_many_at_once_one_is_carried_out(client, other, sink):
    """Eight threads over two processes send the same rows: one record, and 409 or the same answer."""
    row = f'{{"ts":{datetime.now(UTC).timestamp()},"node":"n","metric":"host.load1","value":1}}'
    answers = []

    def send(who):
        sent = who.post("/api/v1/ingest/samples", content=row, headers={"idempotency-key": "k"})
        answers.append(sent.status_code)

    threads = [threading.Thread(target=send, args=(who,)) for who in (client, other) * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(sink.records) == 1
    assert answers.count(202) >= 1
    assert set(answers) <= {202, 409}


def test_the_life_of_a_name(pool, monkeypatch):
    """Taken once; free again when given back, abandoned for 5 minutes, kept for a day, or one too many."""
    key = RequestKey("key", "name")
    with pool.connection() as conn:
        assert reserve(conn, key, b"f", NOW) is None
        assert reserve(conn, key, b"f", NOW) == EarlierRequest(b"f", None, "", None)
        release(conn, key)
        assert reserve(conn, key, b"f", NOW) is None
        assert reserve(conn, key, b"g", NOW + timedelta(minutes=4)) == EarlierRequest(b"f", None, "", None)
        assert reserve(conn, key, b"g", NOW + timedelta(minutes=6)) is None
        complete(conn, key, 201, "application/json", "{}")
        kept = EarlierRequest(b"g", 201, "application/json", "{}")
        assert reserve(conn, key, b"g", NOW + timedelta(hours=24)) == kept
        assert reserve(conn, key, b"g", NOW + timedelta(hours=25)) is None
        assert prune(conn, NOW + timedelta(hours=48)) == 0
        assert prune(conn, NOW + timedelta(hours=50)) == 1
        monkeypatch.setattr(requests, "MOST", 3)
        for i in range(5):
            reserve(conn, RequestKey("key", f"n{i}"), b"f", NOW + timedelta(seconds=i))
        names = conn.execute("SELECT name FROM requests ORDER BY name").fetchall()
        assert names == [("n2",), ("n3",), ("n4",)]
