"""All of it through Kafka, TimescaleDB and every process of an installation, faster than it happened."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, LiteralString

import msgspec
from prometheus_client.parser import text_string_to_metric_families
from psycopg import Connection, connect, sql
from servers.process import free_ports

from alerts.config import FindingConfig
from benchmarks.capacity.installation import Installation, installed
from benchmarks.capacity.usage import usage
from benchmarks.chaos.command import differing_findings
from benchmarks.soak.plan import Plan, placed
from benchmarks.soak.verdict import LOOK_SECONDS, Look, Outcome, settled
from benchmarks.soak.waiting import Waiting
from slowrank.telemetry.topics import DEAD_LETTERS
from store import retention
from store.evidence.freeze import freeze
from streams.runtime.faust_app import READS
from streams.runtime.kafka.offsets import Probe

# Of event time. Seven days with chunks of six hours are longer than a soak.
RETENTION_SHARE, CHUNK_SHARE, PRUNES_A_CHUNK = 1 / 12, 1 / 48, 3

LAG_SECONDS = 0.5
_CATCH_UP_SECONDS = 300.0
# Until the last findings are stored.
_SETTLE_SECONDS = 60.0

_SHOWN = ("detect MB", "sink MB", "detect behind, s", "sink behind, s", "jobs held", "samples_10s rows")

_SIZES: LiteralString = """
SELECT c.relname, coalesce(h.bytes, pg_total_relation_size(c.oid)) FROM pg_class c
LEFT JOIN LATERAL (
  SELECT hypertable_size(c.oid::regclass) AS bytes FROM timescaledb_information.hypertables t
  WHERE t.hypertable_name = c.relname) h ON true
WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace
"""


def run(plan: Plan, speed: float, partitions: int, home: Path) -> tuple[Plan, Outcome]:
    """Send a plan through an installation of its own and look at it until all is stored.

    Returns the plan with the event times that it was given.
    """
    (port,) = free_ports(1)
    with installed(home, partitions, SLOWRANK_STREAMS_METRICS_PORT=str(port)) as made:
        _shorten_chunks(made.dsn, plan.seconds * CHUNK_SHARE)
        plan, file = placed(plan, speed, time.time()), home / "expected.json"
        told = json.dumps(asdict(plan))
        with (
            _spawned("expected", told, str(file)) as one_process,
            _spawned("sender", told, str(speed), made.bootstrap) as sender,
        ):
            assert sender.stdout is not None
            watch = _Watch(made, plan, speed, port, float(sender.stdout.readline()))
            looks, unread, letters = asyncio.run(watch.until_read(sender))
            sent = json.loads(sender.stdout.read())
            if one_process.wait():
                raise RuntimeError("the process that finds what is expected has failed")
        findings, wrong = _settled(made.dsn, msgspec.json.decode(file.read_bytes()), plan)
        opened = [findings[id_] for id_ in _opened(made.dsn)]
    return plan, Outcome(looks, sent["records"], sent["late"], unread, letters, len(findings), opened, wrong)


@contextmanager
def _spawned(module: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-m", f"benchmarks.soak.{module}", *arguments]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _shorten_chunks(dsn: str, seconds: float) -> None:
    with connect(dsn, autocommit=True) as conn:
        for table in retention.ROLLUPS:
            conn.execute("SELECT set_chunk_time_interval(%s, %s)", [table, timedelta(seconds=seconds)])


class _Watch:
    def __init__(self, made: Installation, plan: Plan, speed: float, port: int, began: float) -> None:
        self._made, self._plan, self._speed, self._port = made, plan, speed, port
        self._probe = Probe(made.bootstrap, "slowrank-detect")
        self._pids = made.pids()
        self._began = began
        self._pruned = 0.0
        self._waiting = {role: Waiting() for role in READS}

    async def until_read(self, sender: subprocess.Popen[str]) -> tuple[list[Look], int, int]:
        """Return all looks, and in the end the number of records not read and of dead letters."""
        looks: list[Look] = []
        ended, next_look = math.inf, 0.0
        try:
            with connect(self._made.dsn, autocommit=True) as conn:
                while True:
                    unread = await self._unread()
                    now = time.time()
                    if sender.poll() is None:
                        if now >= next_look:
                            next_look = now + LOOK_SECONDS
                            looks.append(self._look(conn))
                            self._prune(conn, looks[-1].at)
                            _print(looks[-1])
                    else:
                        ended = min(ended, now)
                        if not unread or now > ended + _CATCH_UP_SECONDS:
                            letters = await self._probe.ends(await self._probe.partitions((DEAD_LETTERS,)))
                            return looks, unread, sum(letters.values())
                    await asyncio.sleep(LAG_SECONDS)
        finally:
            await self._probe.close()

    async def _unread(self) -> int:
        unread = 0
        for role, topics in READS.items():
            ends = await self._probe.ends(await self._probe.partitions(topics))
            read = await self._probe.committed(f"slowrank-{role}")
            self._waiting[role].note(time.time(), ends, read)
            unread += sum(end - read.get(place, 0) for place, end in ends.items())
        return unread

    def _look(self, conn: Connection[Any]) -> Look:
        at = (time.time() - self._began) * self._speed
        use = {role: usage(pid) for role, pid in self._pids.items()}
        values = {f"{role} MB": held.bytes / 1e6 for role, held in use.items()}
        values |= {f"{role} behind, s": self._waiting[role].longest() for role in READS}
        values |= self._held()
        for table, size in conn.execute(_SIZES).fetchall():
            rows = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table))
            (count,) = conn.execute(rows).fetchone() or (0,)
            values |= {f"{table} rows": float(count), f"{table} MB": float(size) / 1e6}
        return Look(at, values, {role: held.seconds for role, held in use.items()})

    def _held(self) -> Mapping[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=5.0) as page:
            found = {(name, label): value for name, label, value in _samples(page.read().decode())}
        return {
            "jobs held": found["slowrank_jobs", "analysed"],
            "jobs, MB": found["slowrank_job_memory_bytes", "held"] / 1e6,
            "nodes expected": found["slowrank_nodes_expected", ""],
            "snapshots, MB": found["slowrank_snapshot_bytes", ""] / 1e6,
        }

    def _prune(self, conn: Connection[Any], at: float) -> None:
        """Do what the storing worker does once an hour, by event time and with a retention to match."""
        if at < self._pruned + self._plan.seconds * CHUNK_SHARE / PRUNES_A_CHUNK:
            return
        self._pruned = at
        now = datetime.fromtimestamp(self._plan.start + at, UTC)
        days = self._plan.seconds * RETENTION_SHARE / 86_400.0
        freeze(conn, now=now, days=days)
        retention.prune_telemetry(conn, now=now, days=days, pace_days=days, config_of=_config)


def _print(look: Look) -> None:
    shown = ", ".join(f"{name} {look.values[name]:.1f}" for name in _SHOWN)
    print(f"hour {look.at / 3600.0:.2f}: {shown}", flush=True)


def _config(_cluster: str) -> FindingConfig:
    return FindingConfig()


def _samples(page: str) -> Iterator[tuple[str, str, float]]:
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            yield sample.name, next(iter(sample.labels.values()), ""), sample.value


def _opened(dsn: str) -> list[str]:
    with connect(dsn, autocommit=True) as conn:
        query = "SELECT DISTINCT finding_id FROM finding_history WHERE event = 'finding.opened'"
        return [id_ for (id_,) in conn.execute(query)]


def _settled(
    dsn: str, expected: Mapping[str, Mapping[str, Any]], plan: Plan
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return the findings stored and what differs, once nothing does or time is up."""
    until = time.monotonic() + _SETTLE_SECONDS
    while True:
        with connect(dsn, autocommit=True) as conn:
            found = conn.execute("SELECT id, doc, status FROM findings").fetchall()
        stored = {id_: doc | {"status": status} for id_, doc, status in found}
        wrong = differing_findings(*settled(plan, expected, stored))
        if not wrong or time.monotonic() > until:
            return stored, wrong
        time.sleep(2.0)
