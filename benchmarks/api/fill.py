"""Fills a database with findings, nodes and a large job, as the tables have them after months."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import psycopg
from psycopg.types.json import Jsonb

from alerts.finding import Finding, dedup_key, finding_id
from slowrank.telemetry.records import Subject

# Ranks of the job, and its roll-ups of 10 s.
RANKS, BUCKETS = 1024, 500

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


def filled(dsn: str, findings: int, nodes: int, *, analyze: bool) -> int:
    """Fill the tables; return the start of the job in epoch milliseconds.

    Without ``analyze`` the planner has no statistics yet, as in the first minute of an installation.
    """
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
        "doc": Jsonb(finding.to_json()),
    }
    with psycopg.connect(dsn, autocommit=True) as conn:
        for statement in (_FINDINGS, _NODES, _STEPS, _RANKS, _JOB):
            conn.execute(statement, values)
        if analyze:
            conn.execute("VACUUM ANALYZE")
    return start * 1000
