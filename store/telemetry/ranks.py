"""Writes where the ranks of jobs run, and which jobs there are; removes those not seen for long."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, LiteralString

from psycopg import Connection

from store.findings.rows import moment
from store.telemetry.buckets import RankPlace, StepRollups
from store.text import storable

# The largest number of a column of type integer.
_INT4 = 2**31 - 1

_PLACE: LiteralString = """
INSERT INTO ranks (cluster, job_id, attempt, rank, node, gpu_index, dp, pp, tp, cp, ep,
  first_seen_at, last_seen_at)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (cluster, job_id, attempt, rank) DO UPDATE SET
  node = excluded.node, gpu_index = excluded.gpu_index, dp = excluded.dp, pp = excluded.pp, tp = excluded.tp,
  cp = excluded.cp, ep = excluded.ep, first_seen_at = least(ranks.first_seen_at, excluded.first_seen_at),
  last_seen_at = excluded.last_seen_at
WHERE excluded.last_seen_at >= ranks.last_seen_at
"""

_JOB: LiteralString = """
INSERT INTO jobs (cluster, job_id, attempt, world_size, first_step, last_step, first_seen_at, last_seen_at)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (cluster, job_id, attempt) DO UPDATE SET
  world_size = greatest(jobs.world_size, excluded.world_size),
  first_step = least(jobs.first_step, excluded.first_step),
  last_step = greatest(jobs.last_step, excluded.last_step),
  first_seen_at = least(jobs.first_seen_at, excluded.first_seen_at),
  last_seen_at = greatest(jobs.last_seen_at, excluded.last_seen_at)
WHERE excluded.world_size > jobs.world_size OR excluded.first_step < jobs.first_step
  OR excluded.last_step > jobs.last_step OR excluded.last_seen_at > jobs.last_seen_at
  OR excluded.first_seen_at < jobs.first_seen_at
"""

# A row that a writer holds is seen again just now. To wait for it could deadlock with the other rows of that
# writer.
_FORGET_RANKS: LiteralString = """
DELETE FROM ranks WHERE ctid = ANY(ARRAY(
  SELECT ctid FROM ranks WHERE last_seen_at < %s FOR UPDATE SKIP LOCKED))
"""

_FORGET_JOBS: LiteralString = """
DELETE FROM jobs WHERE ctid = ANY(ARRAY(
  SELECT ctid FROM jobs WHERE last_seen_at < %s FOR UPDATE SKIP LOCKED))
"""


def write_ranks(conn: Connection[Any], places: Iterable[RankPlace]) -> None:
    """Store where ranks run, in one transaction; an older place changes nothing."""
    # Sorted: two writers that lock the same rows in different orders would deadlock.
    rows = sorted((_place(place) for place in places), key=lambda row: (row[:4], row[-1]))
    if rows:
        with conn.transaction(), conn.cursor() as cursor:
            cursor.executemany(_PLACE, rows)


def write_jobs(conn: Connection[Any], steps: Iterable[StepRollups], places: Iterable[RankPlace]) -> None:
    """Store the jobs of step roll-ups and places: one row each, whatever the number of its ranks."""
    jobs: dict[tuple[str, str, int], list[Any]] = {}
    for step in steps:
        _extend(jobs, step, 0, (int(step.first_step.min()), int(step.last_step.max())), step.bucket)
    for place in places:
        _extend(jobs, place, place.world_size, (place.step, place.step), place.at)
    if jobs:
        with conn.transaction(), conn.cursor() as cursor:
            cursor.executemany(_JOB, [_job(key, jobs[key]) for key in sorted(jobs)])


def forget_ranks(conn: Connection[Any], before: datetime) -> dict[str, int]:
    """Remove the ranks and jobs last seen before a time; return how many of each."""
    return {
        "ranks": conn.execute(_FORGET_RANKS, (before,)).rowcount,
        "jobs": conn.execute(_FORGET_JOBS, (before,)).rowcount,
    }


def _extend(
    jobs: dict[tuple[str, str, int], list[Any]],
    row: StepRollups | RankPlace,
    world_size: int,
    steps: tuple[int, int],
    at: float,
) -> None:
    seen = [min(world_size, _INT4), *steps, at, at]
    key = (row.cluster, row.job_id, row.attempt)
    held = jobs.setdefault(key, seen)
    jobs[key] = [join(a, b) for join, a, b in zip((max, min, max, min, max), held, seen, strict=True)]


def _job(key: tuple[str, str, int], held: list[Any]) -> tuple[Any, ...]:
    cluster, job_id, attempt = key
    size, first, last, since, until = held
    return (storable(cluster), storable(job_id), attempt, size, first, last, moment(since), moment(until))


def _place(place: RankPlace) -> tuple[Any, ...]:
    at = moment(place.at)
    key = (storable(place.cluster), storable(place.job_id), place.attempt, place.rank)
    return (*key, storable(place.node), place.gpu_index, *place.coords, at, at)
