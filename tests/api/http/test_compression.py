"""Large answers are compressed for those who accept it, and small ones are not."""

import gzip
from datetime import UTC, datetime

from store.telemetry.batches import write_rows
from store.telemetry.buckets import NodeLatest


def test_a_large_answer_is_compressed(client, pool):
    """The same JSON, a fraction of the bytes; plain where the client does not ask for gzip."""
    now = datetime.now(UTC).timestamp()
    names = [f"compressed-{i:04d}" for i in range(500)]
    rows = [
        NodeLatest(cluster="z", node=name, last_seen_at=now, boot_id="b", seq=1, gpus=8, nics=8)
        for name in names
    ]
    with pool.connection() as conn:
        write_rows(conn, rows)
    plain = client.get("/api/v1/fleet?cluster=z", headers={"accept-encoding": "identity"})
    packed = client.get("/api/v1/fleet?cluster=z", headers={"accept-encoding": "gzip"})
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert "accept-encoding" in packed.headers["vary"]
    assert packed.json() == plain.json()
    assert len(gzip.compress(packed.content)) < len(plain.content) / 5
    assert [n["node"] for n in plain.json()["racks"][0]["nodes"]] == names


def test_a_small_answer_is_not(client):
    """Compressing some hundred bytes costs more than it saves."""
    answer = client.get("/api/v1/findings", headers={"accept-encoding": "gzip"})
    assert "content-encoding" not in answer.headers
