"""How the compute time of healthy ranks varies: tails, memory of several scales, drift, pauses, spikes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.randomised.layout import Floats, Ints
from benchmarks.randomised.ranges import chance, log_uniform


@dataclass(frozen=True, slots=True)
class Noise:
    """Magnitudes of healthy noise, relative to the compute time of a step; correlation times in steps."""

    student: bool
    cv: float
    private: tuple[tuple[float, float], ...]
    host: tuple[float, float]
    shared: tuple[float, float]
    spread: float
    drift: float
    shared_drift: float
    pause_every: float
    pause_seconds: float
    spike_rate: float
    spike_factor: float
    alternate_every: int
    alternate_factor: float
    warm_steps: int
    warm_factor: float


def draw_noise(rng: np.random.Generator, step_seconds: float) -> Noise:
    """Draw the noise of one job."""
    scales = int(rng.integers(1, 4))
    collects, spikes, alternates = chance(rng, 0.7), chance(rng, 0.5), chance(rng, 0.15)
    return Noise(
        student=chance(rng, 0.5),
        # Same-stage ratios 0.5 %, steps of one rank 0.9-2.4 % (ST trace); shared GPUs 1.4-4.7 % (PAI).
        cv=log_uniform(rng, 0.002, 0.04),
        # Lag-1 of 0.7-0.8 in raw compute (ST trace) is 3-5 steps; longer memories are an assumption.
        private=tuple((log_uniform(rng, 2, 300), log_uniform(rng, 0.0005, 0.008)) for _ in range(scales)),
        host=(log_uniform(rng, 5, 300), log_uniform(rng, 0.0002, 0.006)),  # assumption: neighbours on a host
        shared=(log_uniform(rng, 2, 100), log_uniform(rng, 0.002, 0.02)),  # job step CV 0.4-2.4 % (ST trace)
        spread=log_uniform(rng, 0.001, 0.008),  # persistent spread of rank medians 0.1-0.6 % (ST trace)
        drift=log_uniform(rng, 0.0002, 0.005),  # assumption: end to end, per rank
        shared_drift=log_uniform(rng, 0.001, 0.02),  # diurnal heat costs 1-2 % of throughput (Llama 3)
        # Unsynchronised collection in 0.5-2 % of steps, and rarer where it is tuned (MegaScale, What-if).
        pause_every=log_uniform(rng, 50, 500) if collects else 0.0,
        pause_seconds=log_uniform(rng, 0.05, 0.5) * step_seconds,  # +5 to +50 % of a step (same papers)
        spike_rate=log_uniform(rng, 0.002, 0.006) if spikes else 0.0,  # H100 step logs of 2024
        spike_factor=rng.uniform(2.5, 4.0),  # the same logs
        alternate_every=int(rng.integers(2, 20)) if alternates else 0,  # the same: every k-th step
        alternate_factor=1 + log_uniform(rng, 0.01, 0.3),
        warm_steps=int(rng.integers(0, 21)),  # slow first 10-20 steps (H100 step logs)
        warm_factor=1 + log_uniform(rng, 0.02, 2.0),
    )


def rank_spread(noise: Noise, ranks: int, rng: np.random.Generator) -> Floats:
    """Return the lasting factor of each rank, which survives restarts."""
    return np.exp(noise.spread * rng.standard_normal(ranks))


def noise_factors(noise: Noise, node: Ints, steps: int, rng: np.random.Generator) -> Floats:
    """Return the factors [steps, ranks] of one attempt of a job."""
    ranks = len(node)
    log = np.zeros((steps, ranks))
    for correlation, sd in noise.private:
        log += autoregressive(steps, ranks, correlation, sd, rng)
    hosts = autoregressive(steps, int(node.max()) + 1, *noise.host, rng)
    log += hosts[:, node] + autoregressive(steps, 1, *noise.shared, rng)
    time = np.linspace(0, 1, steps)[:, None]
    log += time * (noise.drift * rng.standard_normal(ranks) + noise.shared_drift * rng.standard_normal())
    log += _white(noise, (steps, ranks), rng)
    factor: Floats = np.exp(log) * _job_wide(noise, steps, rng)[:, None]
    return factor


def pauses(noise: Noise, steps: int, ranks: int, rng: np.random.Generator) -> Floats:
    """Return the seconds [steps, ranks] of garbage collection, at moments of each rank's own."""
    if not noise.pause_every:
        return np.zeros((steps, ranks))
    hit = rng.random((steps, ranks)) < 1 / noise.pause_every
    return np.where(hit, noise.pause_seconds * rng.lognormal(0, 0.5, (steps, ranks)), 0.0)


def autoregressive(steps: int, width: int, correlation: float, sd: float, rng: np.random.Generator) -> Floats:
    """Return stationary AR(1) series [steps, width] of ``correlation`` time in steps and deviation ``sd``."""
    phi = np.exp(-1 / correlation)
    shocks: Floats = rng.standard_normal((steps, width)) * sd
    shocks[1:] *= np.sqrt(1 - phi**2)
    for step in range(1, steps):
        shocks[step] += phi * shocks[step - 1]
    return shocks


def _white(noise: Noise, shape: tuple[int, int], rng: np.random.Generator) -> Floats:
    if not noise.student:
        return noise.cv * rng.standard_normal(shape)
    # Student's t3 has variance 3; the clip keeps one sample from being longer than a pause of the job.
    scaled: Floats = noise.cv / np.sqrt(3) * rng.standard_t(3, shape)
    return np.clip(scaled, -0.3, 1.5)


def _job_wide(noise: Noise, steps: int, rng: np.random.Generator) -> Floats:
    factor = np.ones(steps)
    factor[: noise.warm_steps] *= noise.warm_factor
    factor[rng.random(steps) < noise.spike_rate] *= noise.spike_factor
    if noise.alternate_every:
        factor[:: noise.alternate_every] *= noise.alternate_factor
    return factor
