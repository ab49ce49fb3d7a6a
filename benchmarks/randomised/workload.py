"""How much work each rank has by the nature of the job: stages, sequence lengths, curriculum, hot experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from benchmarks.randomised.layout import Floats, Layout, Places
from benchmarks.randomised.ranges import chance, log_uniform, pick

Batches = Literal["fixed", "padded", "packed"]
Counts = Literal["both", "tokens", "squares", "none"]


@dataclass(frozen=True, slots=True)
class Workload:
    """Magnitudes of a job's own imbalance.

    A step costs ``base + (1 - base) · ((1 - attention) · tokens + attention · Σl²)``, both relative to their
    means. ``hot_factor`` multiplies the expert share of the hot expert's ranks for ``hot_dwell`` steps.
    """

    last_stage: float
    stage_spread: float
    batches: Batches
    counts: Counts
    sequences: int
    length: float
    length_sd: float
    base: float
    attention: float
    levels: tuple[float, ...]
    expert_share: float
    hot_factor: float
    hot_dwell: float


class Amounts(NamedTuple):
    """Relative work [steps, ranks], the part that sent counts explain, and the counts [steps, replicas]."""

    work: Floats
    explained: Floats
    tokens: Floats
    squares: Floats


def draw_workload(rng: np.random.Generator) -> Workload:
    """Draw the workload of one job."""
    batches: Batches = pick(rng, ("fixed", "padded", "packed"), (0.5, 0.2, 0.3))
    counts: Counts = "both" if chance(rng, 0.4) else pick(rng, ("tokens", "squares", "none"))
    planned = chance(rng, 0.25)
    return Workload(
        # Last stage: a few per cent when tuned, +62 % on the ST trace; 39 % of straggling jobs (What-if).
        last_stage=1 + (log_uniform(rng, 0.01, 0.8) if chance(rng, 0.6) else 0.0),
        stage_spread=log_uniform(rng, 0.002, 0.05),  # assumption: layers rarely divide evenly
        batches=batches,
        counts=counts,
        sequences=int(rng.integers(2, 33)),
        length=log_uniform(rng, 512, 8192),  # common training lengths
        # Long tails: document lengths are about lognormal with σ near 1 (What-if: sequence imbalance 21.4 %).
        length_sd=rng.uniform(0.3, 1.3),
        base=rng.uniform(0.0, 0.4),  # assumption: optimiser and launch overhead
        attention=log_uniform(rng, 0.02, 0.5),  # 2 % at 1 k tokens, half at 100 k (FLOP counts)
        # Planned levels: +15-22 % in the 2024 logs, multiples where the sequence length is staged (Llama 3).
        levels=tuple(rng.uniform(0.8, 2.0, int(rng.integers(1, 4)))) if planned else (),
        expert_share=rng.uniform(0.2, 0.6),  # assumption: feed-forward share of a layer
        hot_factor=log_uniform(rng, 1.05, 3.0),  # assumption: 3 without a balancing loss
        hot_dwell=log_uniform(rng, 10, 400),  # assumption: a domain of data lasts tens to hundreds of steps
    )


def stage_factors(load: Workload, layout: Layout, rng: np.random.Generator) -> Floats:
    """Return the lasting factor of every pipeline stage."""
    factor = 1 + load.stage_spread * rng.standard_normal(layout.pp)
    if layout.pp == 1:
        return np.ones(1)
    factor[-1] = load.last_stage
    return np.clip(factor, 0.7, None)


def curriculum(load: Workload, steps: int, rng: np.random.Generator) -> Floats:
    """Return the factor [steps] on all lengths: planned levels, each reached by an edge or a ramp."""
    factor = np.ones(steps)
    level = 1.0
    for target in load.levels:
        at, ramp = int(rng.integers(0, steps)), int(rng.integers(1, max(2, steps // 4)))
        rise = np.clip((np.arange(steps) - at) / ramp, 0, 1) if chance(rng, 0.5) else np.arange(steps) >= at
        factor *= 1 + rise * (target / level - 1)
        level = target
    return np.clip(factor, 0.3, 4.0)


def amounts(
    load: Workload, layout: Layout, where: Places, scale: Floats, rng: np.random.Generator
) -> Amounts:
    """Return the work of the steps whose lengths ``scale`` multiplies; a replica's ranks share a batch."""
    steps = len(scale)
    tokens, squares = _counts(load, steps, layout.dp, rng)
    grown, lengthened = tokens * scale[:, None], squares * scale[:, None] ** 2
    mean_tokens, mean_squares = load.sequences * load.length, load.sequences * load.length**2
    linear = load.base + (1 - load.base) * (1 - load.attention) * grown / mean_tokens
    quadratic = (1 - load.base) * load.attention * lengthened / mean_squares
    by_replica = linear + quadratic
    reported = {"both": by_replica, "tokens": linear, "squares": quadratic, "none": np.ones_like(by_replica)}
    known = reported[load.counts]
    # Only one of two counts explains all when the other does not vary.
    if load.counts == "squares" and load.batches == "packed":
        known = by_replica
    work = by_replica[:, where.d] * _experts(load, layout, where, steps, rng)
    return Amounts(work, known[:, where.d], grown, lengthened)


def _counts(load: Workload, steps: int, replicas: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Return tokens and Σl² [steps, replicas] before the curriculum."""
    shape = (steps, replicas)
    if load.batches == "fixed":
        return np.full(shape, load.sequences * load.length), np.full(shape, load.sequences * load.length**2)
    lengths = rng.lognormal(-(load.length_sd**2) / 2, load.length_sd, (*shape, load.sequences))
    lengths = np.clip(lengths, 0.02, 8.0) * load.length
    if load.batches == "packed":
        lengths *= load.sequences * load.length / lengths.sum(-1, keepdims=True)
    tokens: Floats = np.round(lengths).sum(-1)
    squares: Floats = (np.round(lengths) ** 2).sum(-1)
    return tokens, squares


def _experts(load: Workload, layout: Layout, where: Places, steps: int, rng: np.random.Generator) -> Floats:
    """Return factors [steps, ranks]: one expert of each stage is hot until another takes its place."""
    if layout.ep == 1:
        return np.ones((steps, 1))
    hot = np.zeros((steps, layout.pp, layout.ep))
    for stage in range(layout.pp):
        step = 0
        while step < steps:
            dwell = 1 + int(rng.exponential(load.hot_dwell))
            heat = (load.hot_factor - 1) * rng.uniform(0.3, 1.0)
            hot[step : step + dwell, stage, rng.integers(layout.ep)] = heat
            step += dwell
    factor: Floats = 1 + load.expert_share * hot[:, where.p, where.e]
    return factor
