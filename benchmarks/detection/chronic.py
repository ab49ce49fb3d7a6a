"""Chronically slow GPUs (`python -m benchmarks chronic`): healthy ones named, and days until slow ones are.

Fleets are drawn for 28 days: GPUs differ permanently, jobs take one to five days and add differences of their
own, four times as much on hardware shared with others. At the end of each day the paces so far are judged.
`--dsn` writes paces to a new database on that server and prints rows, bytes and seconds; `--ranks` measures
the cost of paces in a job of so many ranks.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import LiteralString

import numpy as np
import numpy.typing as npt
import psycopg
from psycopg import sql

from detectors.fleet.chronic import MIN_DAYS, Day, Fleet, Machine, Pace, chronic, fleet_of
from detectors.peers.step_times import StepTimes
from detectors.straggler.step_detector import StragglerDetector
from store.migrate import migrate
from store.telemetry.rank_pace import means, suspects, write_rank_paces
from streams.job.detectors.pace import Paces
from streams.job.rows.step_rows import Identity
from streams.job.view import JobView
from streams.open_suspicions import OpenSuspicions

Floats = npt.NDArray[np.float64]

DAY = 86_400.0
SHARED, SHARED_TIMES = 0.1, 4.0

# What a job adds to a GPU's difference, as a share of how much GPUs differ.
JOB_SHARE = 0.3

DAY_NOISE = 0.001


@dataclass(frozen=True, slots=True)
class Drawn:
    """Log ratios [days, GPUs], the job of each and the spread that it reports."""

    ratio: Floats
    job: npt.NDArray[np.int64]
    spread: Floats

    def days(self, gpus: Sequence[int], upto: int) -> list[Day]:
        """Return the first days of some GPUs as the store returns them."""
        return [
            Day(
                machine=Machine("c", f"n{g // 8}", g % 8),
                job=str(self.job[d, g]),
                rank=g,
                at=d * DAY,
                hours=24,
                log_ratio=float(self.ratio[d, g]),
                spread=float(self.spread[d, g]),
            )
            for g in gpus
            for d in range(upto)
        ]


def draw(
    rng: np.random.Generator, *, gpus: int, days: int, spread: float, slow: dict[int, tuple[int, float]]
) -> Drawn:
    """Draw a fleet; ``slow``: GPU -> the day from which on it is slower by a log ratio."""
    usual = rng.normal(0, spread, gpus)
    # A node runs one job at a time; the first has begun before the first day.
    job = np.zeros((days, gpus), dtype=np.int64)
    reported, added = np.full((days, gpus), spread), np.zeros((days, gpus))
    for node in range(0, gpus, 8):
        on = slice(node, min(node + 8, gpus))
        day = -int(rng.integers(0, 5))
        while day < days:
            length, shared = int(rng.integers(1, 6)), rng.random() < SHARED
            during = slice(max(day, 0), max(day + length, 0))
            width = spread * (SHARED_TIMES if shared else 1.0)
            added[during, on] = rng.normal(0, width if shared else JOB_SHARE * width, job[0, on].shape)
            reported[during, on], job[during, on] = width, 1000 * node + day + 5
            day += length
    ratio = usual + added + rng.normal(0, DAY_NOISE, (days, gpus))
    for gpu, (begins, size) in slow.items():
        ratio[begins:, gpu] += size
    return Drawn(ratio, job, reported)


def judged(drawn: Drawn, upto: int) -> set[int]:
    """Return the GPUs named at the end of a day, from a superset of the rows that the store would read."""
    ratio = drawn.ratio[:upto]
    sd = ratio.std(axis=0, ddof=1).tolist() if upto > 1 else [None] * ratio.shape[1]
    usual = fleet_of(list(zip(ratio.mean(axis=0).tolist(), sd, strict=True)))
    assert usual is not None
    maybe = np.flatnonzero((ratio >= usual.least / 2).sum(axis=0) >= MIN_DAYS).tolist()
    return {_gpu(one.machine) for one in chronic(drawn.days(maybe, upto), usual)}


@dataclass(slots=True)
class Tally:
    """Number of slow GPUs, days from their onset until they were named, and healthy GPUs named."""

    slow: int = 0
    wrong: int = 0
    days: list[int] = field(default_factory=list)


def run(size: float, spread: float, *, seeds: range, gpus: int = 1000, days: int = 28) -> Tally:
    """Judge drawn fleets day by day; in each ten GPUs become ``size`` slower on the eighth day."""
    tally = Tally()
    begins = 7
    for seed in seeds:
        rng = np.random.default_rng([seed, gpus])
        bad = rng.choice(gpus, 10, replace=False).tolist() if size else []
        slow = {gpu: (begins, float(np.log1p(size))) for gpu in bad}
        drawn = draw(rng, gpus=gpus, days=days, spread=spread, slow=slow)
        first: dict[int, int] = {}
        for upto in range(2, days + 1):
            for gpu in judged(drawn, upto):
                first.setdefault(gpu, upto)
        tally.slow += len(slow)
        tally.wrong += len(first.keys() - slow.keys())
        tally.days += [first[gpu] - begins for gpu in sorted(first.keys() & slow.keys())]
    return tally


def store(dsn: str, *, gpus: int, days: int = 28) -> None:
    """Print the space of paces in a database, and the time of a query over ``gpus`` GPUs."""
    with psycopg.connect(dsn, autocommit=True) as server:
        for statement in ("DROP DATABASE IF EXISTS {} WITH (FORCE)", "CREATE DATABASE {}"):
            server.execute(sql.SQL(statement).format(sql.Identifier("bench_paces")))
    own = psycopg.conninfo.make_conninfo(dsn, dbname="bench_paces")
    migrate(own)
    since = datetime.fromtimestamp(0, UTC)
    with psycopg.connect(own, autocommit=True) as conn:
        few, began = 200, time.perf_counter()
        for hour in range(24 * days):
            write_rank_paces(conn, [_pace(gpu, hour) for gpu in range(few)])
        took = time.perf_counter() - began
        size = _size(conn)
        print(f"{days} rows and {size / few:.0f} bytes a GPU; {few * 24 * days / took:.0f} paces/s written")
        conn.execute("TRUNCATE paces")
        conn.execute(_FILL, {"gpus": gpus, "days": days})
        conn.execute("ANALYZE paces")
        began = time.perf_counter()
        usual = fleet_of(means(conn, "c", since)) or Fleet(0, 0.0, 0.0)
        looked = time.perf_counter()
        rows = suspects(conn, "c", since, least=usual.least)
        read = time.perf_counter()
        named = chronic(rows, usual)
        end = time.perf_counter()
        print(
            f"{gpus} GPUs, {gpus * days} rows: {looked - began:.2f} s for what is usual, "
            f"{read - looked:.2f} s for {len(rows)} rows of suspects, {end - read:.2f} s to judge them; "
            f"{len(named)} named"
        )
    with psycopg.connect(dsn, autocommit=True) as server:
        server.execute("DROP DATABASE bench_paces WITH (FORCE)")


def cost(ranks: int, *, steps: int = 3600) -> None:
    """Print the CPU time of paces in an hour of one-second steps, and their number."""
    detector = StragglerDetector(ranks, np.zeros(ranks, dtype=np.intp))
    rng, none = np.random.default_rng(0), np.full(ranks, np.nan)
    for number in range(256):
        seconds = rng.lognormal(0, 0.01, ranks)
        detector.ratios.observe(
            StepTimes(
                number=1000 + number, ts=np.full(ranks, float(number)), step=seconds, compute=seconds,
                wait=none, data=none, comm=none, checkpoint=none, tokens=none,
            )
        )  # fmt: skip
    identities = {r: Identity(f"n{r // 8}", r % 8, r % 8, (), "") for r in range(ranks)}
    view = JobView(
        cluster="c",
        job_id="j",
        attempt=0,
        roster=tuple(range(ranks)),
        identities=identities,
        core=detector,
        open=OpenSuspicions(30.0),
    )
    paces, sent = Paces(view.job_id, view.roster), 0
    began = time.process_time()
    for second in range(steps + 1):
        if second >= paces.due:
            sent += len(paces.step(view, float(second)))
    took = time.process_time() - began
    print(f"{ranks} ranks: {1e6 * took / steps:.0f} us of CPU a step, {sent} paces in {steps} steps")


_FILL: LiteralString = """
INSERT INTO paces (bucket, cluster, node, gpu_index, job_id, rank, hours, n, ratio_sum, spread_max)
SELECT to_timestamp(d * 86400), 'c', 'node-' || g / 8, g %% 8, 'job-' || (g / 64 + d / 3 * 10000), g,
       16777215, 24, 24 * (5000 * sqrt(-2 * ln(1 - u)) * cos(6.2831853 * v) + 1000 * (random() - 0.5))
       + CASE WHEN g %% 1000 = 7 THEN 24 * 40000 ELSE 0 END, 5000
FROM (SELECT g, random() AS u, random() AS v FROM generate_series(0, %(gpus)s - 1) AS g) AS gpu,
     generate_series(0, %(days)s - 1) AS d
"""


def _size(conn: psycopg.Connection) -> int:
    row = conn.execute("SELECT count(*) FROM pg_extension WHERE extname = 'timescaledb'").fetchone()
    query: LiteralString = "SELECT pg_total_relation_size('paces')"
    if row and row[0]:
        query = "SELECT hypertable_size('paces')"
    size = conn.execute(query).fetchone()
    return int(size[0]) if size else 0


def _pace(gpu: int, hour: int) -> Pace:
    machine = Machine("c", f"node-{gpu // 8:04d}", gpu % 8)
    at, job = 3600.0 * hour, f"job-{hour // 72}"
    return Pace(machine=machine, job=job, rank=gpu, at=at, log_ratio=0.004, spread=0.005)


def _gpu(machine: Machine) -> int:
    return int(machine.node[1:]) * 8 + machine.gpu_index


def main(argv: list[str]) -> int:
    """Print a line per slowdown and spread, or the figures of ``--dsn`` or ``--ranks``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks chronic", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--dsn", help="a server on which a database may be created")
    parser.add_argument("--gpus", type=int, default=100_000, help="with --dsn")
    parser.add_argument("--ranks", type=int)
    options = parser.parse_args(argv)
    if options.dsn:
        store(options.dsn, gpus=options.gpus)
        return 0
    if options.ranks:
        cost(options.ranks)
        return 0
    print("| healthy GPUs differ by | slower by | named | healthy named | days until named, median / P90 |")
    print("|---:|---:|---:|---:|---:|")
    for spread in (0.002, 0.003, 0.005):
        for size in (0.0, 0.02, 0.03, 0.05):
            t = run(size, spread, seeds=range(options.seeds))
            days = f"{np.median(t.days):.0f} / {np.quantile(t.days, 0.9):.0f}" if t.days else "–"
            share = f"{len(t.days) / t.slow:.3f}" if t.slow else "–"
            print(f"| {100 * spread:g} % | {100 * size:g} % | {share} | {t.wrong} | {days} |")
    return 0
