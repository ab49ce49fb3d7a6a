"""Starts of jobs: one finding about the nodes that held a start up, once the phases of its nodes are in."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

from detectors.job.startup import SlowStart, Startup, judge
from slowrank.telemetry import Evidence, Peers, StartupPhase, Subject, Suspicion
from slowrank.telemetry.messages import PHASES

# Phases that no node ends before the last has begun them.
TOGETHER = np.array([phase in ("rendezvous", "first_step") for phase in PHASES])

# After the first step of all nodes, for phases that arrive late (chosen: exporters send within seconds).
SETTLE_SECONDS = 15.0
# Without another phase for so long, a start is judged as it is (chosen: an image is pulled within it).
GIVE_UP_SECONDS = 1800.0

# Names come from outside: nodes of all starts at once, ten times those of the largest fleet that we plan for
# (12,500; some 150 MB).
MAX_NODES = 1 << 17

# Nodes listed as evidence, the costliest first (chosen).
_NAMED = 3

Key = tuple[str, str, int, bool]
Seconds = npt.NDArray[np.float64]


@dataclass(slots=True)
class _Start:
    """The phases of one attempt of a job: (begin, end) in event time by node and phase."""

    phases: dict[str, dict[str, tuple[float, float]]] = field(default_factory=dict)
    gpus: dict[str, int] = field(default_factory=dict)
    last: float = 0.0

    @property
    def due(self) -> float:
        """When it is judged: soon after the last node's first step, or without a phase for half an hour."""
        whole = all("first_step" in ended for ended in self.phases.values())
        return self.last + (SETTLE_SECONDS if whole else GIVE_UP_SECONDS)


class Startups:
    """The starts under way, ``held``; the order in which their messages come changes nothing."""

    def __init__(self, max_nodes: int = MAX_NODES) -> None:
        self.held: dict[Key, _Start] = {}
        self._nodes, self._max_nodes = 0, max_nodes

    def update(self, message: StartupPhase) -> None:
        """Take one phase of one node."""
        key, node = (message.cluster, message.job_id, message.attempt, message.shadow), message.node
        start = self.held.get(key)
        if start is None or node not in start.phases:
            # What is under way goes on: a new start in the place of an old one would cost both.
            if self._nodes >= self._max_nodes:
                return
            start = self.held.setdefault(key, _Start())
            self._nodes += 1
        start.phases.setdefault(node, {})[message.phase] = (message.began, message.ts)
        start.gpus[node] = max(message.gpus, start.gpus.get(node, 0))
        start.last = max(start.last, message.ts)

    def due(self, now: float) -> Iterator[Suspicion]:
        """Yield the suspicions from the starts that are over by the event time ``now``."""
        for key in sorted(key for key, start in self.held.items() if start.due <= now):
            self._nodes -= len(self.held[key].phases)
            yield from _judged(key, self.held.pop(key))


def _judged(key: Key, start: _Start) -> Iterator[Suspicion]:
    nodes = sorted(start.phases)
    seconds = np.full((len(nodes), len(PHASES)), np.nan)
    for i, node in enumerate(nodes):
        for phase, (began, ended) in start.phases[node].items():
            seconds[i, PHASES.index(phase)] = ended - began
    gpus = np.array([start.gpus[node] for node in nodes], dtype=np.intp)
    found = judge(seconds, gpus, together=TOGETHER)
    if found is None or not found.slow_starts:
        return
    worst = found.slow_starts[0]
    # The job is held up from when the others were through with the phase.
    onset = start.phases[nodes[worst.node]][PHASES[worst.phase]][0] + worst.usual
    raised = Suspicion(
        cluster=key[0],
        detector="startup",
        catalogue_id="startup",
        family="job",
        kind="startup.slow",
        state="raise",
        subject=Subject(type="job", cluster=key[0], job_id=key[1], attempt=key[2]),
        ts=start.due,
        onset=onset,
        onset_lo=onset,
        onset_hi=onset,
        # A second at least: of a phase that usually takes none there is no ratio.
        score=worst.seconds / max(worst.usual, 1.0),
        log_likelihood_ratio=3.0,
        overwhelming=True,
        gpus=int(gpus.sum()),
        nodes=len(nodes),
        evidence=_evidence(found, nodes, seconds),
        shadow=key[3],
    )
    # The start is over when it is judged: the finding ends at once.
    yield raised
    yield msgspec.structs.replace(raised, state="clear", ts=start.due + 1.0)


def _evidence(found: Startup, nodes: list[str], seconds: Seconds) -> tuple[Evidence, ...]:
    slowest = Evidence(
        metric="startup.slowest_phase_seconds",
        unit="s",
        detector="startup",
        value=round(float(found.longest[found.slowest]), 3),
        note=PHASES[found.slowest],
    )
    lost = Evidence(
        metric="startup.gpu_hours_lost", unit="h", detector="startup", value=round(found.lost / 3600.0, 4)
    )
    return (
        slowest,
        lost,
        *(_evidence_of(s, i, nodes, seconds) for i, s in enumerate(found.slow_starts[:_NAMED])),
    )


def _evidence_of(s: SlowStart, i: int, nodes: list[str], seconds: Seconds) -> Evidence:
    others = np.delete(seconds[:, s.phase], s.node)
    others = others[np.isfinite(others)]
    return Evidence(
        metric=f"startup.straggler_{i + 1}_seconds",
        unit="s",
        detector="startup",
        value=round(s.seconds, 3),
        peers=Peers(
            group=PHASES[s.phase],
            n=int(others.size),
            p05=round(float(np.quantile(others, 0.05)), 3),
            median=round(s.usual, 3),
            p95=round(float(np.quantile(others, 0.95)), 3),
            rank_of_subject=1 + int((others < s.seconds).sum()),
        ),
        note=f"{nodes[s.node]}: {PHASES[s.phase]}",
    )
