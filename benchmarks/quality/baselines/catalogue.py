"""Published and simple detectors on the same stream as ours, each with its best parameter.

Every parameter was chosen on the tuning seeds by F1 over the parts `slow` and `mix` (`--tune` repeats it),
with the published value among the choices. Alarms about several GPUs of one node within a minute count as one
alarm about the node, so that a fault that slows eight GPUs does not count against a baseline.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from benchmarks.quality.baselines import distance_rules, step_rules
from benchmarks.quality.baselines.job_arrays import Recorder
from benchmarks.quality.scoring.matching import Alarm

Floats = npt.NDArray[np.float64]
Rule = Callable[[Floats, float], list[tuple[int, int]]]
Device = tuple[str, int | None]

# Chosen: in favour of the baselines, longer than a fault takes to reach all GPUs of a node.
MERGE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Baseline:
    """A rule on steps [steps, ranks] or samples [ticks, nodes, metrics] that returns (row, column) of alarms.

    ``knob`` is the value of the parameter that is used, ``grid`` the values it was chosen from.
    """

    rule: Rule
    on: Literal["steps", "samples"]
    knob: float
    grid: tuple[float, ...]


def _opened(rule: Callable[..., npt.NDArray[np.bool_]], knob_name: str) -> Rule:
    def run(seconds: Floats, knob: float) -> list[tuple[int, int]]:
        with np.errstate(invalid="ignore", divide="ignore"):
            return step_rules.alarms(rule(seconds, **{knob_name: knob}))

    return run


BASELINES: dict[str, Baseline] = {
    "static threshold": Baseline(_opened(step_rules.static, "factor"), "steps", 1.05, (1.05, 1.1, 1.2, 1.5)),
    "rolling z": Baseline(_opened(step_rules.rolling_z, "limit"), "steps", 4.0, (3.0, 4.0, 5.0, 8.0)),
    "rolling ratio to peers": Baseline(
        _opened(step_rules.rolling_ratio, "limit"), "steps", 1.03, (1.03, 1.05, 1.1, 1.15)
    ),
    "NVRx relative score": Baseline(
        _opened(step_rules.nvrx, "score"), "steps", 0.9, (0.7, 0.75, 0.8, 0.85, 0.9)
    ),
    "DLRover x median": Baseline(_opened(step_rules.dlrover, "factor"), "steps", 1.1, (1.1, 1.2, 1.5, 2.0)),
    "BOCPD + verification": Baseline(distance_rules.bocpd_verified, "steps", 0.03, (0.03, 0.05, 0.1, 0.2)),
    "Mahalanobis": Baseline(distance_rules.mahalanobis, "samples", 5.0, (3.0, 4.0, 5.0, 8.0)),
    "Minder-style, no VAE": Baseline(distance_rules.minder, "samples", 3.0, (1.5, 2.0, 3.0, 4.0)),
}
if distance_rules.HAS_FAST_BOCPD:
    BASELINES["fast-bocpd detector"] = Baseline(
        distance_rules.fast_bocpd, "steps", 100.0, (3.0, 5.0, 10.0, 100.0)
    )


def alarms_of(recorder: Recorder, baseline: Baseline, knob: float) -> tuple[Alarm, ...]:
    """Return the alarms of the baseline on the recorded stream."""
    return tuple(alarm for job, hits in _hits(recorder, baseline, knob) for alarm in _merged(job, hits))


def _hits(
    recorder: Recorder, baseline: Baseline, knob: float
) -> Iterable[tuple[str, list[tuple[float, Device]]]]:
    if baseline.on == "steps":
        for steps in recorder.steps():
            found = baseline.rule(steps.seconds, knob)
            yield steps.job_id, [(float(steps.ts[s]), steps.places[r]) for s, r in found]
    else:
        for samples in recorder.samples():
            found = baseline.rule(samples.values, knob)
            yield samples.job_id, [(float(samples.ts[t]), (samples.nodes[n], None)) for t, n in found]


def _merged(job: str, hits: list[tuple[float, Device]]) -> Iterable[Alarm]:
    by_node: dict[str, list[tuple[float, int | None]]] = {}
    for at, (node, gpu) in sorted(hits, key=lambda hit: hit[0]):
        by_node.setdefault(node, []).append((at, gpu))
    for node, left in by_node.items():
        while left:
            first = left[0][0]
            gpus = {gpu for at, gpu in left if at - first <= MERGE_SECONDS}
            left = [(at, gpu) for at, gpu in left if at - first > MERGE_SECONDS]
            place = (node, gpus.pop() if len(gpus) == 1 else None)
            yield Alarm(at=first, sent_at=first, onset=first, kind="baseline", places=(place,), job_id=job)
