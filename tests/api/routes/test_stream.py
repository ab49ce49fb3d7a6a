"""The live stream over a real server: new events as they come, missed ones on reconnecting."""

import json
import queue
import threading
import time
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import httpx
import pytest

from api.security.sessions import COOKIE
from store.access import keys, sessions


@pytest.fixture
def listen(live):
    """Open streams: ``listen(token, last_id)`` returns a queue of (id, type, data)."""
    base, stops = live(), []

    def start(token, last_id=None):
        got: queue.Queue[tuple[str, str, dict[str, Any]]] = queue.Queue()
        opened = threading.Event()
        client = httpx.Client(timeout=30)
        headers = {"authorization": f"Bearer {token}"} | ({"last-event-id": last_id} if last_id else {})

        def read():
            try:
                with client.stream("GET", f"{base}/api/v1/events/stream", headers=headers) as answer:
                    fields = {}
                    for line in answer.iter_lines():
                        opened.set()
                        name, _, value = line.partition(": ")
                        if line:
                            fields[name] = value
                        elif "data" in fields:
                            got.put((fields["id"], fields["event"], json.loads(fields["data"])))
                            fields = {}
            except httpx.HTTPError:
                pass

        thread = threading.Thread(target=read)
        thread.start()
        assert opened.wait(10)
        stops.append((client, thread))
        return got

    yield start
    for client, _ in stops:
        client.close()


def test_events_come_as_they_happen_and_again_after_a_break(listen, new_token, save_finding):
    """A listener hears what is new; one that reconnects hears what it missed, once and in order."""
    token = new_token("findings:read")
    first = save_finding(node="before")
    stream = listen(token)
    second, third = save_finding(node="second"), save_finding(node="third")

    heard = [stream.get(timeout=10), stream.get(timeout=10)]
    assert [h[2]["data"]["id"] for h in heard] == [second.id, third.id]
    assert {h[1] for h in heard} == {"finding.opened"}

    again = listen(token, heard[0][0])
    assert again.get(timeout=10)[2]["data"]["id"] == third.id
    fourth = save_finding(node="fourth")
    assert again.get(timeout=10)[2]["data"]["id"] == fourth.id
    assert stream.get(timeout=10)[2]["data"]["id"] == fourth.id
    assert first.id not in {h[2]["data"]["id"] for h in heard}


def test_a_limited_key_hears_of_its_clusters(listen, new_token, save_finding):
    """Events of other clusters do not reach it."""
    stream = listen(new_token("findings:read", clusters=("a",)))
    save_finding(cluster="b")
    mine = save_finding(cluster="a")
    assert stream.get(timeout=10)[2]["data"]["id"] == mine.id
    assert stream.empty()


@pytest.mark.parametrize("known_by", ["key", "session"])
def test_a_stream_ends_with_its_key(live, new_token, pool, monkeypatch, known_by):
    """Revoking the key ends what it has open, too, also where a browser's session stands for it."""
    monkeypatch.setattr("api.routes.stream.CHECK_SECONDS", 0.0)
    monkeypatch.setattr("api.event_hub.PING_SECONDS", 0.1)
    token = new_token("findings:read")
    key_id, now = token.split("_")[1], datetime.now(UTC)
    with pool.connection() as conn:
        cookie = f"{COOKIE}={sessions.create(conn, key_id, 'session', now)}"
    headers = {"authorization": f"Bearer {token}"} if known_by == "key" else {"cookie": cookie}
    with httpx.stream("GET", f"{live()}/api/v1/events/stream", headers=headers, timeout=10) as answer:
        lines = answer.iter_lines()
        # Two pings: it stays open while the key is valid.
        assert [next(line for line in lines if line.startswith(":")) for _ in range(2)] == [": ping"] * 2
        with pool.connection() as conn:
            assert keys.revoke(conn, key_id, now)
        assert len(list(islice(lines, 50))) < 50


def test_a_key_has_four_streams_however_they_are_asked_for(live, new_token):
    """Of twelve requests at once four are streams and the others a 429; ended ones make room."""
    url = f"{live()}/api/v1/events/stream"
    headers = {"authorization": f"Bearer {new_token('findings:read')}"}
    statuses, all_asked, client = [], threading.Event(), httpx.Client(timeout=30)

    def ask():
        with client.stream("GET", url, headers=headers) as answer:
            statuses.append(answer.status_code)
            if len(statuses) == 12:
                all_asked.set()
            all_asked.wait(20)

    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [200] * 4 + [429] * 8
    deadline = time.monotonic() + 10
    while statuses[-1] != 200 or len(statuses) == 12:
        assert time.monotonic() < deadline
        ask()
    client.close()
