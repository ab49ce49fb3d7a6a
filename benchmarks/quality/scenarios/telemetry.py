"""Telemetry that fails, class by class: whether it is told as that, and nobody is called slow for it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from benchmarks.quality.format import delays, interval
from benchmarks.quality.matching import match
from benchmarks.quality.metrics import bootstrap, precision, recall
from benchmarks.quality.run import OURS, Outcome
from benchmarks.quality.scenarios import Scenario, scenario
from benchmarks.quality.score import Score, in_vain, job_of, scores
from simulator import ClusterSpec, Fault, JobSpec
from simulator.cluster.scenarios import draw_fault

NODES, RACK, GPUS = 4, 4, 4
LAYOUTS = ((4, 1, 4), (8, 1, 2), (16, 1, 1), (2, 2, 4))
"""(dp, pp, tp) of a job of 16 ranks on four nodes; one of two racks has twice as many replicas."""

PASSING = {
    "dead exporter": "exporter_gap",
    "frozen samples": "frozen_exporter",
    "clock ahead": "clock_skew",
    "late batches": "late_batch",
    "records twice": "duplicate_batch",
    "counters from zero": "counter_reset",
}
LASTING = {"blocked reads": "gsp_hang", "silent GPU": "gpu_lost", "silent node": "node_silent"}
RACKS = {"rack of silent exporters": "exporter_gap", "rack of dead nodes": "node_silent"}

SECONDS = 230.0
LATE_SECONDS = (15.0, 90.0)
"""Batches that are late by less leave no gap of ten seconds, from which on there is something to tell."""


def telemetry(seed: int) -> Sequence[Scenario]:
    """One job for each class, of four nodes, and two of eight of which one rack falls silent.

    What passes lasts one or two minutes, so that its end is seen as well. The racks fall silent apart from
    each other and from the rest, for many nodes that do so at once are taken for the telemetry path.
    """
    rng = np.random.default_rng([seed, 11])
    rows = (*PASSING, *LASTING, *RACKS)
    jobs = [_job(rng, number, 2 if row in RACKS else 1) for number, row in enumerate(rows)]
    places = np.cumsum([0, *(job.world // GPUS for job in jobs)])
    placed = tuple(replace(job, first_node=int(node)) for job, node in zip(jobs, places, strict=False))
    nics = int(rng.choice([1, 2, 4]))
    spec = ClusterSpec(
        nodes=int(places[-1]), gpus=GPUS, nics=nics, jobs=placed, nodes_per_rack=RACK, nodes_per_switch=16
    )
    faults: list[tuple[str, Fault]] = []
    for number, (row, kind) in enumerate((PASSING | LASTING).items()):
        fault = draw_fault(spec, kind, rng=rng, onset=float(rng.uniform(60, 90)))
        if kind == "late_batch":
            fault = replace(fault, magnitude=float(rng.uniform(*LATE_SECONDS)))
        seconds = float(rng.uniform(60, 120)) if row in PASSING and kind != "counter_reset" else 1e9
        node = placed[number].first_node + int(rng.integers(NODES))
        faults.append((row, replace(fault, node=node, duration=seconds)))
    for number, (row, kind) in enumerate(RACKS.items(), start=len(faults)):
        onset = float(rng.uniform(105, 125)) + 50 * (kind == "node_silent")
        first = placed[number].first_node + RACK * int(rng.integers(2))
        faults += [(row, Fault(kind=kind, node=first + n, onset=onset, duration=1e9)) for n in range(RACK)]
    drawn = scenario(
        "telemetry",
        seed,
        spec,
        [fault for _, fault in faults],
        rows=[row for row, _ in faults],
        seconds=SECONDS,
        compared=False,
    )
    return [replace(drawn, as_one=tuple(RACKS))]


def _job(rng: np.random.Generator, number: int, racks: int) -> JobSpec:
    dp, pp, tp = LAYOUTS[int(rng.integers(len(LAYOUTS)))]
    return JobSpec(
        dp=dp * racks,
        pp=pp,
        tp=tp,
        job_id=f"job-{number}",
        step_seconds=float(np.clip(rng.lognormal(0.0, 0.6), 0.3, 4.0)),
        first_step=int(rng.integers(100, 100_000)),
        micro_batches=int(rng.choice([4, 8, 16])),
    )


COLUMNS = (
    "row", "events", "told", "precision", "opened after s: median, P95", "told in vain", "called slow",
)  # fmt: skip
SLOW = ("straggler.", "throttle.", "clock.low", "data.", "gray.", "link.nic_slow", "host.cpu_contention")
"""Kinds of findings that say of a machine, or of a job, that it is slow."""


def telemetry_rows(outcomes: Sequence[Outcome]) -> Iterator[tuple[str, ...]]:
    """Yield for each class what was told of it, and what besides of the job in which it happened.

    Where there is nothing to tell, all that is told is in vain.
    """
    scored = scores(outcomes)
    rows = dict.fromkeys(event.row for outcome in outcomes for event in outcome.events)
    for row in rows:
        of_row = [(o, {e.job_id for e in o.events if e.row == row}) for o in outcomes]
        said = np.array([_said(outcome, jobs) for outcome, jobs in of_row], np.float64)
        events = sum(e.row == row for outcome in outcomes for e in outcome.events)
        score = scored.get(row, Score())
        found = score.counts("true")[:, 0] if score.events else np.zeros(len(said))
        missed = score.counts("missed")[:, 0] if score.events else np.zeros(len(said))
        counts = np.column_stack([found, said[:, 0], missed])
        yield (
            row,
            str(events),
            *(interval(bootstrap(counts, statistic)) for statistic in (recall, precision)),
            delays(score.opened),
            *(str(int(n)) for n in said.sum(axis=0)),
        )


def _said(outcome: Outcome, jobs: set[str | None]) -> tuple[int, int]:
    """Return how much was told of jobs in vain or twice, and how often something in them was called slow."""
    result = match(outcome.events, outcome.alarms[OURS])
    vain = [*in_vain(outcome), *(alarm for _, alarm in result.duplicates)]
    slow = [a for a in outcome.alarms[OURS] if a.kind.startswith(SLOW)]
    told, called = (sum(job_of(outcome, a) in jobs for a in alarms) for alarms in (vain, slow))
    return told, called
