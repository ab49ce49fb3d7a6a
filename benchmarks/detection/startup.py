"""Starts of jobs (`python -m benchmarks startup`): who holds a start up, and what does that cost?

Starts are drawn with their barriers: image, environment and launch follow each other on every node, all meet,
all load, and all make their first step together. In three of four one node takes longer in one phase, by 1.6
to 8 times and 35 s at least. What the nodes tell arrives late, twice or never.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from alerts.finding import Finding
from slowrank.telemetry import NodeEvent
from slowrank.telemetry.messages import PHASES
from streams.cluster.job_startup import TOGETHER
from streams.pipeline import local_pipeline

Floats = npt.NDArray[np.float64]

T0, GPUS = 1_795_160_000.0, 8
REPORT_SEEDS = 1000
"""The first of those reported; no threshold was chosen on them."""

USUAL = {
    "image": (30.0, 600.0),
    "environment": (5.0, 60.0),
    "launch": (2.0, 15.0),
    "checkpoint_load": (20.0, 300.0),
    "first_step": (15.0, 120.0),
}
"""Fewest and most seconds a phase usually takes."""

LATE_SECONDS, TWICE = 30.0, 0.05
GIVE_UP_SECONDS = 1900.0
CLOSE = 0.02


@dataclass(frozen=True, slots=True)
class Start:
    """When each node ended each phase, ``ends`` [nodes, phases], from the start on in seconds.

    ``straggler``: the node and phase that hold it up; ``sooner``: by how many seconds all would have been
    over had that node taken as long as the median one.
    """

    ends: Floats
    straggler: tuple[int, int] | None = None
    sooner: float = 0.0

    @property
    def seconds(self) -> Floats:
        """What each phase took, [nodes, phases]."""
        return np.diff(self.ends, axis=1, prepend=0.0)

    @property
    def gpu_hours_lost(self) -> float:
        """All GPUs times what the slowest node of each phase took beyond the median one."""
        own = self.seconds[:, ~TOGETHER]
        return GPUS * len(own) * float((own.max(axis=0) - np.median(own, axis=0)).sum()) / 3600.0


@dataclass(slots=True)
class Tally:
    """Starts with a straggler: told of, the node named first, and its phase, and the slowest phase right.

    ``lost``: what was said to be lost over what was; ``said`` and ``avoidable``: GPU-hours said, and those
    that the straggler alone cost. Healthy starts, and those of them told of.
    """

    starts: int = 0
    told: int = 0
    node: int = 0
    phase: int = 0
    slowest: int = 0
    healthy: int = 0
    wrong: int = 0
    lost: list[float] = field(default_factory=list)
    said: float = 0.0
    avoidable: float = 0.0

    @property
    def close(self) -> float:
        """Share of the starts told of whose loss is right within 2 %."""
        return float(np.mean(np.abs(np.array(self.lost) - 1.0) <= CLOSE)) if self.lost else 0.0


def drawn(rng: np.random.Generator, *, healthy: bool) -> Start:
    """Draw a start of 4 to 256 nodes."""
    nodes = int(np.exp(rng.uniform(np.log(4), np.log(257))))
    spread = rng.uniform(0.02, 0.08)
    usual = {name: float(np.exp(rng.uniform(*np.log(range_)))) for name, range_ in USUAL.items()}
    work = {name: u * np.exp(spread * rng.standard_normal(nodes)) for name, u in usual.items()}
    if healthy:
        return Start(_ends(work))
    phase = str(rng.choice([name for name, t in zip(PHASES, TOGETHER, strict=True) if not t]))
    node = int(rng.integers(nodes))
    work[phase][node] = float(np.median(work[phase]))
    well = _ends(work)
    work[phase][node] += max(35.0, usual[phase] * rng.uniform(0.6, 7.0))
    ends = _ends(work)
    return Start(ends, (node, PHASES.index(phase)), float(ends.max() - well.max()))


def _ends(work: dict[str, Floats]) -> Floats:
    """Return when each node ends each phase, [nodes, phases], where all meet twice."""
    ready = np.cumsum([work[name] for name in PHASES[:3]], axis=0)
    met = np.full_like(ready[-1], ready[-1].max() + 1.0)
    loaded = met + work["checkpoint_load"]
    first = np.full_like(loaded, loaded.max() + work["first_step"].max())
    return np.stack([*ready, met, loaded, first], axis=1)


def arrivals(start: Start, rng: np.random.Generator, *, lost: float) -> Iterator[NodeEvent]:
    """Yield what the nodes tell in order of arrival; a share of it is ``lost``."""
    sent = []
    for node, phase in np.ndindex(*start.seconds.shape):
        event = NodeEvent(
            cluster="c",
            node=f"n{node}",
            ts=T0 + float(start.ends[node, phase]),
            source="job",
            code=f"startup.{PHASES[phase]}",
            subject={
                "job_id": "j",
                "milliseconds": round(1000.0 * float(start.seconds[node, phase])),
                "gpus": GPUS,
            },
        )
        copies = 0 if rng.random() < lost else 1 + int(rng.random() < TWICE)
        sent += [(event.ts + rng.uniform(0.0, LATE_SECONDS), event) for _ in range(copies)]
    yield from (event for _, event in sorted(sent, key=lambda pair: pair[0]))


def told(events: Iterator[NodeEvent]) -> Finding | None:
    """Return what is said of a start, with event time going on until it must have been."""
    pipeline, found, last = local_pipeline(), list[Finding](), T0
    for event in events:
        found += pipeline.process(event)
        last = max(last, event.ts)
    for after in (LATE_SECONDS, GIVE_UP_SECONDS):
        found += pipeline.tick(last + after)
    return next((f for f in found if f.kind == "startup.slow" and f.status == "open"), None)


def count(tally: Tally, start: Start, finding: Finding | None) -> None:
    """Add one start to the tally."""
    if start.straggler is None:
        tally.healthy += 1
        tally.wrong += finding is not None
        return
    tally.starts += 1
    if finding is None:
        return
    said = {e.metric: e for e in finding.evidence}
    node, _, phase = (said["startup.straggler_1_seconds"].note or "").partition(": ")
    tally.told += 1
    tally.node += node == f"n{start.straggler[0]}"
    tally.phase += phase == PHASES[start.straggler[1]]
    longest = PHASES[int(start.seconds.max(axis=0).argmax())]
    tally.slowest += said["startup.slowest_phase_seconds"].note == longest
    lost = said["startup.gpu_hours_lost"].value
    tally.lost.append(lost / start.gpu_hours_lost)
    tally.said += lost
    tally.avoidable += GPUS * len(start.ends) * start.sooner / 3600.0


def run(seeds: range, *, lost: float) -> Tally:
    """Draw a start per seed, every fourth one healthy, and count what is said of it."""
    tally = Tally()
    for seed in seeds:
        rng = np.random.default_rng([seed, 9])
        start = drawn(rng, healthy=seed % 4 == 0)
        count(tally, start, told(arrivals(start, rng, lost=lost)))
    return tally


def main(argv: list[str]) -> int:
    """Print a row per share of events lost; 1 when the goals are missed where none is."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks startup", description=__doc__)
    parser.add_argument("--starts", type=int, default=200)
    options = parser.parse_args(argv)
    seeds = range(REPORT_SEEDS, REPORT_SEEDS + options.starts)
    tallies = {lost: run(seeds, lost=lost) for lost in (0.0, 0.001, 0.01)}
    print("| events lost | held up | told | node | phase | slowest phase | loss within 2 % | ", end="")
    print("over the straggler's alone | in vain |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for lost, t in tallies.items():
        named = f"{t.starts} | {t.told} | {t.node} | {t.phase} | {t.slowest}"
        over = t.said / t.avoidable if t.avoidable else float("nan")
        print(f"| {lost:.1%} | {named} | {t.close:.3f} | {over:.2f} | {t.wrong} of {t.healthy} |")
    whole = tallies[0.0]
    return int(min(whole.node, whole.slowest) < 0.95 * whole.starts or whole.close < 1.0 or whole.wrong > 0)
