"""Random schedules of faults: kinds, places and times by a published mix, from a seed."""

import math
from collections.abc import Iterator

import numpy as np

from simulator.cluster.layout import ClusterSpec
from simulator.cluster.mixes import LEMON_HAZARD, MIXES, Mix
from simulator.faults.catalogue import CATALOGUE
from simulator.faults.condition import BoolArray
from simulator.faults.fault import Fault
from simulator.faults.kinds import FaultKind

DAY_SECONDS = 86400.0

# Published: a third of the gaps between failures is under an hour, and their CV is 4 to 7.
BURST_SHARE, BURST_GAP_SECONDS = 1 / 3, 600.0
GAP_SIGMA = 1.7
BURN_IN_GAPS = 20

# Slowness of jobs of 512 GPUs and more lasted 72 minutes in the mean, from tens of seconds to ten hours.
LARGE_WORLD, LARGE_MINUTES, LARGE_SIGMA = 512, 72.0, 1.3
LASTS_LONGER = ("silent_slow", "thermal_throttle", "host_contention", "congestion")


def draw_faults(
    spec: ClusterSpec, *, seed: int, duration: float, mix: Mix | str = "default", intensity: float = 1.0
) -> tuple[Fault, ...]:
    """Return the faults of ``duration`` seconds, by onset; ``intensity`` multiplies all rates.

    Onsets are a renewal process with bursts; kinds are drawn by the mix, places uniformly except for lemons,
    sizes, durations and shapes by the catalogue. Chronic faults begin at the start.
    """
    mix = MIXES[mix] if isinstance(mix, str) else mix
    # A random stream of its own, independent of the cluster of the same seed.
    rng = np.random.default_rng([seed, 0x5EED])
    lemons = rng.random(spec.nodes) < mix.lemons
    kinds, rates = list(mix.rates), np.array(list(mix.rates.values()))
    per_second = intensity * rates.sum() * spec.nodes / 1000.0 / DAY_SECONDS
    faults = list(_from_the_start(spec, mix, lemons, rng))
    for onset in _onsets(per_second, duration, rng):
        kind = str(rng.choice(kinds, p=rates / rates.sum()))
        faults.append(draw_fault(spec, kind, rng=rng, onset=onset, lemons=lemons))
    return tuple(sorted(faults, key=lambda fault: fault.onset))


def draw_fault(
    spec: ClusterSpec,
    kind: str,
    *,
    rng: np.random.Generator,
    onset: float,
    lemons: BoolArray | None = None,
    magnitude: float | None = None,
) -> Fault:
    """Return one fault of ``kind`` at a place drawn from ``rng``, on a node with a job if it slows one.

    Its size (unless ``magnitude`` is given), duration and shape are drawn from the catalogue's ranges.
    """
    row = CATALOGUE[kind]
    weights = np.ones(spec.nodes) if lemons is None else np.where(lemons, LEMON_HAZARD, 1.0)
    busy = _busy(spec, onset)
    # An idle node shows no slowness, and a job's fault needs a job.
    if (row.gating or row.scope == "job") and busy.any():
        weights = weights * busy
    node = int(rng.choice(spec.nodes, p=weights / weights.sum()))
    job = spec.job_at(node, onset)
    return Fault(
        kind=kind,
        node=node,
        gpu=int(rng.integers(spec.gpus)) if row.scope in ("gpu", "nic", "rail") else None,
        onset=float(onset),
        duration=_duration(kind, rng, world=0 if job is None else job.world),
        magnitude=_size(row, rng) if magnitude is None else magnitude,
        shape=row.shapes[int(rng.integers(len(row.shapes)))],
        period=_between(row.period, rng),
        duty=float(rng.uniform(*row.duty)),
    )


def _from_the_start(
    spec: ClusterSpec, mix: Mix, lemons: BoolArray, rng: np.random.Generator
) -> Iterator[Fault]:
    for node in range(spec.nodes):
        given = [kind for kind, share in mix.chronic.items() if rng.random() < share]
        if lemons[node]:
            given.append("lemon_node")
        for kind in given:
            row = CATALOGUE[kind]
            yield Fault(
                kind=kind,
                node=node,
                gpu=int(rng.integers(spec.gpus)),
                onset=0.0,
                # Machines that are slow for good are about a tenth slower.
                magnitude=float(rng.uniform(1.05, 1.15)),
                shape=row.shapes[0] if kind == "lemon_node" else "step",
                period=_between(row.period, rng),
                duty=float(rng.uniform(*row.duty)),
            )


def _onsets(per_second: float, duration: float, rng: np.random.Generator) -> Iterator[float]:
    """Yield the times of a stationary renewal process."""
    # Such that the mean of all gaps, with the short ones of bursts, is 1 / per_second.
    mean_long = (1.0 / per_second - BURST_SHARE * BURST_GAP_SECONDS) / (1.0 - BURST_SHARE)
    # At very high rates bursts alone would exceed the rate.
    mean_long = max(mean_long, 0.1 / per_second)
    # Starts long before 0, so that the process is stationary.
    t = -BURN_IN_GAPS / per_second
    while True:
        if rng.random() < BURST_SHARE:
            t += min(float(rng.exponential(BURST_GAP_SECONDS)), 1.0 / per_second)
        else:
            # Less half the variance: the mean of a lognormal is above its median.
            t += float(rng.lognormal(math.log(mean_long) - GAP_SIGMA**2 / 2, GAP_SIGMA))
        if t >= duration:
            return
        if t >= 0:
            yield t


def _busy(spec: ClusterSpec, t: float) -> BoolArray:
    """Return which nodes have a job at ``t``."""
    busy = np.zeros(spec.nodes, np.bool_)
    for job in spec.jobs:
        if job.begins <= t < job.ends:
            nodes = spec.nodes_of_job(job)
            busy[nodes.start : nodes.stop] = True
    return busy


def _duration(kind: str, rng: np.random.Generator, *, world: int) -> float:
    row = CATALOGUE[kind]
    if row.minutes is None:
        return math.inf
    minutes, sigma = row.minutes, row.sigma
    if world >= LARGE_WORLD and kind in LASTS_LONGER:
        minutes, sigma = LARGE_MINUTES, LARGE_SIGMA
    return max(2.0, float(rng.lognormal(math.log(60.0 * minutes) - sigma**2 / 2, sigma)))


def _size(row: FaultKind, rng: np.random.Generator) -> float:
    """Return a magnitude, log-uniform; of factors their excess over 1 is."""
    if row.unit == "x":
        return 1.0 + _between((row.size[0] - 1.0, row.size[1] - 1.0), rng)
    return _between(row.size, rng)


def _between(limits: tuple[float, float], rng: np.random.Generator) -> float:
    return float(math.exp(rng.uniform(math.log(limits[0]), math.log(limits[1]))))
