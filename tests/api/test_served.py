"""`slowrank api run` as an operator starts it: telemetry over HTTP comes out of real Kafka."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time

import httpx
import pytest
from kafka import KafkaConsumer

from slowrank.telemetry.codec import decode_steps
from slowrank.telemetry.records import JobSteps
from slowrank.telemetry.rows.json_rows import rows


def command(*arguments):
    return [sys.executable, "-c", "from cli import main; main()", *arguments]


@pytest.fixture
def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.mark.integration
def test_ingested_rows_come_out_of_kafka(kafka_bootstrap, api_dsn, new_token, free_port, tmp_path):
    """202 means that the brokers have the records, keyed by job, and /readyz sees the broker."""
    prefix = f"t{secrets.token_hex(4)}-"
    environment = {n: v for n, v in os.environ.items() if not n.startswith("SLOWRANK_")} | {
        "SLOWRANK_DATABASE_URL": api_dsn,
        "SLOWRANK_KAFKA_BOOTSTRAP": kafka_bootstrap,
        "SLOWRANK_TOPIC_PREFIX": prefix,
    }
    subprocess.run(
        command("topics", "create"), env=environment, cwd=tmp_path, check=True, capture_output=True
    )
    headers = {"authorization": f"Bearer {new_token('telemetry:write')}"}
    now = time.time()
    step = {
        "kind": "step",
        "ts": now,
        "cluster": "c",
        "job_id": "j",
        "node": "n",
        "rank": 3,
        "step_seconds": 1.5,
    }
    body = "\n".join(json.dumps(step | {"step": i, "ts": now - 50 + i}) for i in range(50))
    with (tmp_path / "log").open("wb") as log:
        api = subprocess.Popen(
            command("api", "run", "--port", str(free_port)), env=environment, cwd=tmp_path, stderr=log
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{free_port}", headers=headers, timeout=60) as client:
            _until_ready(client)
            checks = {c["name"]: c for c in client.get("/readyz").json()["checks"]}
            assert checks["kafka"]["ok"], checks
            answer = client.post("/api/v1/ingest/samples", content=body)
            assert answer.status_code == 202, answer.text
            assert answer.json()["accepted"] == 50
    finally:
        api.terminate()
        # uvicorn hands the signal on when it has shut down in order.
        assert api.wait(20) in (0, -signal.SIGTERM), (tmp_path / "log").read_text()
    consumer = KafkaConsumer(
        f"{prefix}job-steps", bootstrap_servers=kafka_bootstrap, auto_offset_reset="earliest", group_id=None
    )
    got: list[tuple[bytes, JobSteps]] = []
    deadline = time.monotonic() + 30
    while len(got) < 50 and time.monotonic() < deadline:
        for messages in consumer.poll(timeout_ms=500).values():
            got += [(m.key, decode_steps(m.value)) for m in messages]
    consumer.close()
    assert {key for key, _ in got} == {b"j"}
    assert sorted(row["step"] for _, record in got for row in rows(record)) == list(range(50))


def _until_ready(client):
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        try:
            if client.get("/readyz").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise AssertionError("the API did not come up")
