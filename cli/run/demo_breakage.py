"""What one can break in the running demo, and which findings are about it."""

import queue
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from api.pages.breakable import Broken, Choice
from cli.run.demo_scenario import GPUS, NODES
from simulator import Cluster, Fault, Planned, Truth

Json = dict[str, Any]

CHOICES = (
    Choice("thermal", "one GPU overheats", "1"),
    Choice("nic", "a NIC at half speed", "2"),
    Choice("hang", "a rank hangs", "3"),
    Choice("switch", "a switch fails", "4"),
    Choice("deploy", "a deploy that slows every rank: no fault", "5"),
)

# Simulated seconds until it begins: longer than a step (2.3 s), as steps are planned from their start.
LEAD_SECONDS = 4.0
# Simulated seconds until the repair. Chosen: longer than detection takes; a hang is critical after 120 s.
SECONDS = {"thermal": 180.0, "nic": 180.0, "hang": 180.0, "switch": 90.0}

# Chosen: more than twice the slowdown from which a job counts as hurt (``alerts.report.severity``).
DEPLOY_FACTOR = 1.12

# By how much the estimated onset of a finding may precede the true one (chosen: some ten steps).
EARLY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class _Injected:
    name: str
    shown: Broken
    truth: Truth | None
    onset: float
    end: float  # Both in Unix seconds.


class Breakage:
    """Breaks things in a simulated cluster on request; ``Breakable`` of the pages.

    Requests come from any thread and are carried out by ``apply`` in the thread that runs the cluster.
    """

    choices: Sequence[Choice] = CHOICES

    def __init__(self, cluster: Cluster, rng: np.random.Generator) -> None:
        self._cluster = cluster
        self._rng = rng
        self._asked: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._injected: tuple[_Injected, ...] = ()
        self._now = 0.0

    def begin(self, name: str) -> None:
        """Ask for one of ``CHOICES``. Raises ``ValueError`` for another, and for one that lasts still."""
        if name not in {choice.name for choice in CHOICES}:
            raise ValueError(f"{name!r} cannot be broken; there are: {', '.join(c.name for c in CHOICES)}")
        lasting = [one.end for one in self._injected if one.name == name and one.end > self._now]
        if lasting:
            left = max(lasting) - self._now
            raise ValueError(f"this is broken already, for another {left:.0f} s; choose something else")
        self._asked.put(name)

    def begun(self) -> Sequence[Broken]:
        """Return what was broken, the latest first."""
        return [one.shown for one in reversed(self._injected)]

    def apply(self, at: float) -> Sequence[Broken]:
        """Carry out and return what was asked for; the cluster has run to ``at`` seconds since its start."""
        self._now = self._cluster.spec.start + at
        before = len(self._injected)
        while not self._asked.empty():
            self._injected = (*self._injected, self._inject(self._asked.get(), at + LEAD_SECONDS))
        return [one.shown for one in self._injected[before:]]

    def follow(self, findings: Iterable[Json]) -> None:
        """Note which findings are about what was broken."""
        found = list(findings)
        self._injected = tuple(
            one if one.shown.finding else replace(one, shown=_found(one, found)) for one in self._injected
        )

    def _inject(self, name: str, onset: float) -> _Injected:
        at = self._cluster.spec.start + onset
        if name == "deploy":
            # Every second one takes the first back.
            back = sum(one.name == name for one in self._injected) % 2
            factor = 1.0 / DEPLOY_FACTOR if back else DEPLOY_FACTOR
            self._cluster.plan(self._cluster.spec.jobs[0].job_id, Planned(onset=onset, factor=factor))
            change = f"deploy: every rank computes {factor:.2f}x as long"
            return _Injected(name, Broken(_utc(at), change, benign=True), None, at, at)
        fault = self._fault(name, onset)
        self._cluster.inject(fault)
        truth = self._cluster.truth[-1]
        return _Injected(
            name, Broken(_utc(at), _title(name, truth), benign=False), truth, at, at + SECONDS[name]
        )

    def _fault(self, name: str, onset: float) -> Fault:
        taken = {fault.node for fault in self._cluster.faults if fault.end > onset}
        node = int(self._rng.choice([n for n in range(NODES) if n not in taken]))
        gpu, lasts = int(self._rng.integers(GPUS)), SECONDS[name]
        match name:
            case "thermal":
                kind, size = "thermal_throttle", float(self._rng.uniform(1.25, 1.45))
                return Fault(
                    kind=kind,
                    node=node,
                    gpu=gpu,
                    onset=onset,
                    duration=lasts,
                    magnitude=size,
                    shape="ramp",
                    period=6.0,
                )
            case "nic":
                return Fault(kind="nic_slow", node=node, gpu=gpu, onset=onset, duration=lasts, magnitude=2.0)
            case "hang":
                return Fault(kind="job_hang", node=node, gpu=gpu, onset=onset, duration=lasts)
            case _:
                return Fault(kind="switch_down", node=node, onset=onset, duration=lasts)


def concerns(finding: Json, truth: Truth) -> bool:
    """Return whether a finding of a right kind is about the place of ``truth``."""
    subject = finding["subject"]
    if finding["kind"] not in truth.verdicts or _onset(finding) < truth.onset - EARLY_SECONDS:
        return False
    if truth.scope == "switch":
        # The cluster has one switch that fails at a time; its name is a label and no part of the truth.
        return bool(subject.get("switch")) or subject.get("node") in truth.nodes
    gpu = subject.get("gpu_index")
    same_gpu = gpu is None or truth.gpu_index is None or gpu == truth.gpu_index
    # A hang stops the whole job: its finding is about the job where it does not name the rank.
    return subject.get("node") in ((truth.node,) if truth.machine else (truth.node, None)) and same_gpu


def _found(one: _Injected, findings: list[Json]) -> Broken:
    about = [finding for finding in findings if _is_about(finding, one)]
    if not about:
        return one.shown
    first = min(about, key=lambda finding: str(finding["detected_at"]))
    seconds = datetime.fromisoformat(first["detected_at"]).timestamp() - one.onset
    return replace(one.shown, finding=first["id"], seconds=max(0.0, seconds))


def _is_about(finding: Json, one: _Injected) -> bool:
    if one.truth is not None:
        return concerns(finding, one.truth)
    return finding["kind"] == "straggler.job_wide" and _onset(finding) >= one.onset - EARLY_SECONDS


def _title(name: str, truth: Truth) -> str:
    gpu = f"{truth.node} GPU {truth.gpu_index}"
    return {
        "thermal": f"{gpu} overheats, {truth.magnitude:.2f}x slower",
        "nic": f"{truth.node} {truth.nic} at half speed",
        "hang": f"the rank of {gpu} hangs",
        "switch": f"the switch of {truth.nodes[0]} to {truth.nodes[-1]} fails",
    }[name]


def _onset(finding: Json) -> float:
    return datetime.fromisoformat(finding["onset"]).timestamp()


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
