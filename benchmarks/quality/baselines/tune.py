"""Choice of the baselines' parameters on tuning seeds: the best F1 over the parts slow and mix."""

from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.quality.baselines.catalogue import BASELINES, alarms_of
from benchmarks.quality.baselines.job_arrays import Recorder
from benchmarks.quality.scenarios.parts import PARTS
from benchmarks.quality.scenarios.scenario import Scenario, events_of
from benchmarks.quality.scoring.matching import match
from benchmarks.quality.scoring.metrics import Floats, f1
from simulator import Cluster

Counts = dict[tuple[str, float], Floats]


def tuned(seeds: Sequence[int]) -> Iterator[str]:
    """Yield one line per baseline: F1 at every value of its grid, and the best."""
    counts: Counts = {(name, knob): np.zeros(3) for name, b in BASELINES.items() for knob in b.grid}
    for seed in seeds:
        for part in ("slow", "mix"):
            for scenario in PARTS[part](seed):
                _watch(scenario, counts)
    for name, baseline in BASELINES.items():
        score = {knob: float(f1(counts[name, knob])) for knob in baseline.grid}
        best = max(score, key=lambda knob: score[knob])
        yield f"{name}: best {best} of " + ", ".join(f"{k}: {v:.3f}" for k, v in score.items())


def _watch(scenario: Scenario, counts: Counts) -> None:
    cluster = Cluster(scenario.spec, seed=scenario.seed, faults=scenario.faults)
    recorder = Recorder(scenario.spec.send_seconds)
    for record in cluster.run(scenario.seconds):
        recorder.add(record)
    events = events_of(scenario, cluster.truth)
    for name, knob in counts:
        result = match(events, alarms_of(recorder, BASELINES[name], knob))
        counts[name, knob] += (
            len(result.found),
            len(result.false) + len(result.duplicates),
            len(result.missed),
        )
