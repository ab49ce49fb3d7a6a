"""Latency of the dashboard API beside a trivial endpoint in the same server process, on a filled database.

`scripts/services.py run -- python -m benchmarks api` fills a database of its own on the server of
SLOWRANK_TEST_DSN and drops it afterwards. Requests come one after the other over loopback with one key, whose
rate limits are lifted; each path is asked in turn, so that a disturbance meets all alike. Sizes are those of
the answers as sent, compressed.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from unittest import mock

import httpx
import psycopg
from pydantic import SecretStr

from alerts.finding import Finding, dedup_key, finding_id
from api.app import create_app
from api.http.connections import server
from api.http.limits import Rate
from benchmarks.database import own_database
from slowrank.settings import Settings
from slowrank.telemetry.records import Subject
from store.access import keys
from store.pool import open_pool

RANKS, BUCKETS, PER_NODE = 1024, 500, 8
HEATMAP_BYTES = 300_000
"""Goal of the product for a heat map of this size."""

# One finding in a thousand is open, on a node of its own; a tenth of them are of the job.
_FINDINGS = """
INSERT INTO findings (id, dedup_key, cluster, kind, severity, status, title, subject_type, node, gpu_index,
  job_id, detector, onset, detected_at, last_seen_at, resolved_at, as_of, confidence, score, gpu_hours_lost,
  gpu_hours_lost_per_hour, occurrences, doc)
SELECT 'fnd_' || lpad(i::text, 26, '0'), 'k' || i, 'c', 'straggler.fail_slow', 'warning',
  CASE WHEN i %% 1000 = 0 THEN 'open' ELSE 'resolved' END, 't', 'gpu', 'n' || i %% %(nodes)s, i %% 8,
  CASE WHEN i %% 10 = 0 THEN 'j' END, 'peer_step', at, at, at, CASE WHEN i %% 1000 = 0 THEN NULL ELSE at END,
  at, 0.9, 2, 1, 1, 1, %(doc)s::jsonb || jsonb_build_object('id', 'fnd_' || lpad(i::text, 26, '0'))
FROM (SELECT i, now() - i * interval '2 s' AS at FROM generate_series(1, %(findings)s::int) AS i) AS made
"""
_NODES = """
INSERT INTO nodes (cluster, node, last_seen_at, boot_id, seq, gpus, nics, rack)
SELECT 'c', 'n' || i, now(), 'b', 1, 8, 8, 'r' || i / 32 FROM generate_series(0, %(nodes)s - 1) AS i
"""
_STEPS = """
INSERT INTO steps_10s (bucket, cluster, job_id, attempt, rank, node, n_steps, step_seconds_sum,
  step_seconds_max, compute_seconds_sum, compute_seconds_max, wait_seconds_sum, first_step, last_step)
SELECT %(start)s::timestamptz + b * interval '10 s', 'c', 'j', 0, r, 'n' || r / 8, 5, v * 5, v, v * 5, v, 0.1,
  b * 5, b * 5 + 4
FROM (SELECT b, r, 2 * (1 + 0.01 * sqrt(-2 * ln(1 - random())) * cos(2 * pi() * random()))
    * CASE WHEN r = 5 AND b > 250 THEN 1.3 ELSE 1 END AS v
  FROM generate_series(0, %(buckets)s - 1) AS b, generate_series(0, %(ranks)s - 1) AS r) AS made
"""
_RANKS = """
INSERT INTO ranks SELECT 'c', 'j', 0, r, 'n' || r / 8, r %% 8, r / 8 %% 32, r / 256, r %% 8, NULL, NULL,
  %(start)s, now() FROM generate_series(0, %(ranks)s - 1) AS r
"""
_JOB = "INSERT INTO jobs VALUES ('c', 'j', 0, %(ranks)s, 0, %(buckets)s * 5, %(start)s, %(end)s)"


def main(argv: list[str]) -> int:
    """Print a table of latencies; return 1 when a heat map is larger than its goal."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks api", description=__doc__)
    parser.add_argument("--findings", type=int, default=1_000_000)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args(argv)
    with own_database() as dsn:
        start = _filled(dsn, options.findings, options.nodes)
        with open_pool(dsn, name="benchmark") as pool, _served(dsn, pool) as (url, token):
            measured, sizes = _measured(url, token, _paths(start), options.rounds)
    print(f"{options.findings} findings, {options.nodes} nodes, {RANKS} ranks x {BUCKETS} roll-ups")
    print("path                 p50 ms    p99 ms   p50 / trivial   p99 / trivial   bytes")
    (p50, p99) = _quantiles(measured["trivial"])
    for name, seconds in measured.items():
        a, b = _quantiles(seconds)
        print(f"{name:18} {a * 1e3:8.2f} {b * 1e3:9.2f} {a / p50:15.1f} {b / p99:15.1f} {sizes[name]:7d}")
    return int(sizes["heatmap"] > HEATMAP_BYTES)


def _paths(start: int) -> dict[str, str]:
    end = start + BUCKETS * 10_000
    return {
        "trivial": "/trivial",
        "list": "/api/v1/findings?status=open",
        "detail": f"/api/v1/findings/fnd_{'1000':0>26}",
        "evidence": f"/api/v1/findings/fnd_{'1000':0>26}/evidence",
        "nodes": "/api/v1/nodes?node=n[100-199]",
        "jobs": "/api/v1/jobs",
        "steps": f"/api/v1/jobs/j/steps?from={start}&to={end}",
        "heatmap": f"/api/v1/jobs/j/heatmap?from={start}&to={end}",
        "timeline": "/api/v1/timeline?since=1h",
        "fleet": "/api/v1/fleet",
    }


def _measured(
    url: str, token: str, paths: dict[str, str], rounds: int
) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Return the seconds of every request by name, and the bytes of an answer."""
    seconds: dict[str, list[float]] = {name: [] for name in paths}
    sizes: dict[str, int] = {}
    with httpx.Client(base_url=url, headers={"authorization": f"Bearer {token}"}, timeout=60) as client:
        for round_ in range(rounds + 2):
            for name, path in paths.items():
                began = time.perf_counter()
                with client.stream("GET", path) as answer:
                    size = sum(map(len, answer.iter_raw()))
                took = time.perf_counter() - began
                if answer.status_code != 200:
                    raise RuntimeError(f"{path}: HTTP {answer.status_code}")
                sizes[name] = size
                # The first two fill caches.
                if round_ >= 2:
                    seconds[name].append(took)
    return seconds, sizes


def _quantiles(values: list[float]) -> tuple[float, float]:
    ordered = sorted(values)
    return statistics.median(ordered), ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]


def _filled(dsn: str, findings: int, nodes: int) -> int:
    """Fill the tables; return the start of the job in epoch milliseconds."""
    start = int(time.time()) // 10 * 10 - 10 * BUCKETS
    subject = Subject(type="gpu", cluster="c", node="n0", gpu_index=5, rank=5, job_id="j", attempt=0)
    key = dedup_key(subject, "straggler.fail_slow")
    finding = Finding(
        id=finding_id(key, start),
        dedup_key=key,
        kind="straggler.fail_slow",
        title="n0 GPU 5 (rank 5) is 1.30x slower than 1023 peers",
        severity="warning",
        status="open",
        subject=subject,
        onset=start + 2500.0,
        onset_lo=start + 2490.0,
        onset_hi=start + 2510.0,
        detected_at=start + 2600.0,
        last_seen_at=start + 2600.0,
        detector="peer_step",
    )
    values = {
        "findings": findings,
        "nodes": nodes,
        "ranks": RANKS,
        "buckets": BUCKETS,
        "start": datetime.fromtimestamp(start, UTC),
        "end": datetime.fromtimestamp(start + 10 * BUCKETS, UTC),
        "doc": psycopg.types.json.Jsonb(finding.to_json()),
    }
    with psycopg.connect(dsn, autocommit=True) as conn:
        for statement in (_FINDINGS, _NODES, _STEPS, _RANKS, _JOB):
            conn.execute(statement, values)
        conn.execute("VACUUM ANALYZE")
    return start * 1000


@contextmanager
def _served(dsn: str, pool: Any) -> Iterator[tuple[str, str]]:
    """Serve the API with one endpoint more, which does nothing; yield its URL and a token for all reads."""
    key_id, token, digest = keys.generate()
    key = keys.ApiKey(
        id=key_id,
        name="benchmark",
        sha256=digest,
        scopes=("findings:read", "telemetry:read"),
        created_by="benchmark",
        created_at=datetime.now(UTC),
    )
    with pool.connection() as conn:
        keys.create(conn, key)
    app = create_app(Settings(database_url=SecretStr(dsn)), pool)
    app.add_api_route("/trivial", lambda: {"ok": True})
    serving = server(app, log_level="error", lifespan="off")
    with (
        mock.patch("api.security.auth.READ", Rate(1e6, 1e6)),
        socket.create_server(("127.0.0.1", 0)) as listening,
    ):
        thread = threading.Thread(target=serving.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", token
        finally:
            serving.should_exit = True
            thread.join(20)
