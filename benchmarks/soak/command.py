"""A day of coming and going, compressed: what must stay flat in workers, lag and tables.

Pairs of nodes run one job after the other, a thousand in all by default. Between two jobs both nodes leave
for a minute and return with another boot; every seventh job breaks off without a word, and its nodes stay
away for a quarter of an hour. In every fifth job a GPU is hot. Without --speed all goes through a detecting
worker and the fusion stage in this process, as fast as they take it; with it through Kafka, the workers and
TimescaleDB, so many times as fast as it happened, and roll-ups are kept for a twelfth of the run, in chunks
of a quarter of that.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.soak import in_process
from benchmarks.soak.plan import Plan, placed
from benchmarks.soak.verdict import (
    LOOK_SECONDS,
    PARTS,
    WARM_UP,
    Course,
    Outcome,
    courses,
    missed,
    unexplained,
)

START = 1_795_100_000.0
_SHOWN = 20


def main(argv: Sequence[str]) -> int:
    """Print what was seen; return 1 when something grows, is found wrongly or is slower than it must be."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--pairs", type=int, default=8, help="pairs of nodes")
    parser.add_argument("--hours", type=float, default=24.0, help="of event time")
    parser.add_argument("--speed", type=float, help="times the clock, through a whole installation")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--home", help="folder for logs; a temporary one without it")
    parser.add_argument("--json", help="file for all that was seen")
    options = parser.parse_args(argv)
    try:
        plan = Plan(jobs=options.jobs, pairs=options.pairs, seconds=options.hours * 3600.0, start=START)
        if options.speed:
            placed(plan, options.speed, START)
            _check_looks(plan.seconds / options.speed)
    except ValueError as error:
        parser.error(str(error))
    if not options.speed:
        return in_process.report(plan)
    # Starts servers, for which ``scripts`` has to be on the path.
    from benchmarks.soak.installed import run

    with tempfile.TemporaryDirectory(prefix="slowrank-soak-") as folder:
        home = Path(options.home or folder)
        home.mkdir(parents=True, exist_ok=True)
        plan, outcome = run(plan, options.speed, options.partitions, home)
    if options.json:
        Path(options.json).write_bytes(msgspec.json.encode({"plan": plan, "outcome": outcome}))
    return _report(plan, options.speed, outcome)


def _check_looks(seconds: float) -> None:
    if seconds < 2 * PARTS * LOOK_SECONDS:
        raise ValueError(
            f"the run would take {seconds:.0f} s; for two looks in each of {PARTS} parts it needs "
            f"{2 * PARTS * LOOK_SECONDS:.0f} s: take more --hours or less --speed"
        )


def _report(plan: Plan, speed: float, outcome: Outcome) -> int:
    found = courses(outcome.looks, plan.seconds)
    first, last = outcome.looks[0], outcome.looks[-1]
    wall = (last.at - first.at) / speed
    print(
        f"{plan.jobs} jobs on {2 * plan.pairs} nodes, {plan.seconds / 3600:g} h at {speed:g} times the "
        f"clock, {outcome.records:,} records; the sender was late by {outcome.late} s at most\n"
    )
    print(f"| means of {PARTS} parts, after {WARM_UP} | first | last | an hour (95 %) | |")
    print("|---|---:|---:|---:|---|")
    for course in found:
        if course.must_be_flat or course.first != course.last:
            print(_row(course))
    cores = ", ".join(f"{role} {(last.cpu[role] - first.cpu[role]) / wall:.2f}" for role in last.cpu)
    print(f"\ncores: {cores}")
    wrong = {
        "records not read": [str(outcome.unread)] * bool(outcome.unread),
        "dead letters": [str(outcome.dead_letters)] * bool(outcome.dead_letters),
        "faults not found": missed(plan, outcome.opened),
        "findings about nothing that happened": unexplained(plan, outcome.opened),
        "findings other than those of one process": outcome.wrong,
    }
    print(f"{len(plan.hot())} faults, {len(outcome.opened)} findings of {outcome.findings} were open")
    for what, texts in wrong.items():
        print(f"{what}: {len(texts) or 'none'}")
        for text in texts[:_SHOWN]:
            print(f"  {text[:600]}")
    return int(any(course.rises for course in found) or any(wrong.values()))


def _row(course: Course) -> str:
    line = course.trend
    if not course.must_be_flat:
        verdict = "not judged"
    elif course.rises:
        verdict = "RISES"
    else:
        verdict = "flat"
    interval = f"{line.slope:+.3g} ({line.low:+.3g} to {line.high:+.3g})"
    return f"| {course.name} | {course.first:,.1f} | {course.last:,.1f} | {interval} | {verdict} |"
