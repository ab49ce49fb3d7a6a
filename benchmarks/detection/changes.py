"""Effect of truncation, spikes and heavy tails on the change detector (goals P5 and P6), and the coverage of
its onset intervals.

P5: the default bank (64 slots, absorbing) beside the same bank with as many slots as samples in float64,
which is the untruncated posterior. An alarm is a mass of new runs above 0.9, without acceptance, so that both
process the same samples; false alarms are counted over all healthy stretches. P6: `ChangeDetectorBank` with
and without clipping, including acceptance, on noise of unit variance.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.changepoint.acceptance import ChangeConfig
from detectors.changepoint.bank import BocpdBank
from detectors.changepoint.bocpd import BocpdConfig
from detectors.changepoint.detector import ChangeDetectorBank
from detectors.changepoint.standardise import Scale

Floats = NDArray[np.float64]

ALARM = 0.9
BEFORE, AFTER = 500, 100
WITHIN = 60

# Name → shift and factor of the standard deviation.
EFFECTS: dict[str, tuple[float, float]] = {
    "+1σ": (1.0, 1.0),
    "+2σ": (2.0, 1.0),
    "+3σ": (3.0, 1.0),
    "sd ×2": (0.0, 2.0),
    "sd ×3": (0.0, 3.0),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """False alarms per 1,000 samples before the change, share found within 60 samples, median delay."""

    false: float
    found: float
    delay: float


def main(argv: list[str]) -> int:
    """Print the three tables; 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks changes", description=__doc__)
    parser.add_argument("--series", type=int, default=400)
    series = parser.parse_args(argv).series
    passed = [_truncation(series, hazard) for hazard in (1e-6, 1e-3)]
    passed.append(_noise(series))
    passed.append(_onsets(series * 5))
    return 0 if all(passed) else 1


def _truncation(series: int, hazard: float) -> bool:
    print(f"| P5, hazard {hazard:g}: false per 1,000, found @ delay | exact | 64 slots | within |")
    print("|---|---:|---:|---|")
    samples, passed, false = BEFORE + AFTER, True, np.zeros(2)
    exact = BocpdConfig(hazard=hazard, slots=samples, cap=samples)
    for name, (shift, factor) in EFFECTS.items():
        x = np.random.default_rng([series, int(10 * factor + shift)]).normal(size=(samples, series))
        x[BEFORE:] = x[BEFORE:] * factor + shift
        full = _judge(BocpdBank(series, config=exact, backend="numpy", dtype=np.float64).update_batch(x))
        ours = _judge(BocpdBank(series, config=BocpdConfig(hazard=hazard)).update_batch(x))
        good = ours.found >= full.found - 0.02 and ours.delay <= full.delay + 1
        passed &= good
        false += full.false / len(EFFECTS), ours.false / len(EFFECTS)
        print(f"| {name} | {_cell(full)} | {_cell(ours)} | {'yes' if good else 'NO'} |")
    quiet = bool(false[1] <= 1.05 * false[0])
    print(f"| all: false per 1,000 | {false[0]:.3f} | {false[1]:.3f} | {'yes' if quiet else 'NO'} |\n")
    return passed and quiet


def _judge(probability: NDArray[np.floating]) -> Outcome:
    """Return the outcome of alarms that last while the probability [samples, series] is above 0.9."""
    alarm = probability > ALARM
    rising = alarm & ~np.vstack((np.zeros_like(alarm[:1]), alarm[:-1]))
    healthy = ~alarm[BEFORE - 1]
    after = alarm[BEFORE : BEFORE + WITHIN]
    hit = after.any(axis=0) & healthy
    delay = float(np.median(after.argmax(axis=0)[hit])) if hit.any() else np.inf
    return Outcome(1e3 * rising[:BEFORE].sum() / rising[:BEFORE].size, hit.sum() / healthy.sum(), delay)


def _cell(outcome: Outcome) -> str:
    return f"{outcome.false:.3f}, {outcome.found:.3f} @ {outcome.delay:.0f}"


def _spiky(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    x = rng.normal(size=shape)
    spikes = rng.random(shape) < 0.01
    x[spikes] += (rng.uniform(8, 30, shape) * rng.choice((-1, 1), shape))[spikes]
    return x


NOISES: dict[str, Callable[[np.random.Generator, tuple[int, int]], Floats]] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "1 % spikes of 8-30σ": _spiky,
    "Student t₃": lambda rng, shape: rng.standard_t(3, shape) / np.sqrt(3.0),
}


def _noise(series: int) -> bool:
    config = ChangeConfig(min_relative=0.0)
    plain = replace(config, clip=1e9, clip_run=0)
    print("| P6: false per 1,000, +3σ found @ delay | plain | with clip | any change, with clip |")
    print("|---|---:|---:|---:|")
    passed = True
    for number, (name, noise) in enumerate(NOISES.items()):
        x = noise(np.random.default_rng([series, 100 + number]), (BEFORE + AFTER, series))
        x[BEFORE:] += 3.0
        without, clipped = (_watch(x, setting, significant=True) for setting in (plain, config))
        every = _watch(x, config, significant=False)
        passed &= clipped.false <= 0.05 and clipped.found >= 0.98 and clipped.delay <= without.delay + 2
        print(f"| {name} | {_cell(without)} | {_cell(clipped)} | {_cell(every)} |")
    print("goals with clip: at most 0.05, at least 0.98, delay at most plain on normal noise + 2\n")
    return passed


def _watch(x: Floats, config: ChangeConfig, *, significant: bool) -> Outcome:
    """Return the outcome of the accepted changes, or of those above the least effect."""
    series = x.shape[1]
    bank = ChangeDetectorBank([Scale("identity", 0.3)] * series, config=config)
    false, delays = 0, np.full(series, np.inf)
    for t, row in enumerate(x):
        for change in bank.update(float(t), row):
            if significant and not change.significant:
                continue
            if t < BEFORE:
                false += 1
            else:
                delays[change.series] = min(delays[change.series], t - BEFORE)
    hit = delays < WITHIN
    learning = config.warmup + config.baseline
    return Outcome(1e3 * false / (series * (BEFORE - learning)), float(hit.mean()), float(np.median(delays)))


def _onsets(series: int) -> bool:
    """Print the coverage of the 90 % onset interval at the alarm, for several sizes of shifts."""
    print("| onset interval at the alarm | found | mass in the interval | holds the truth | width |")
    print("|---|---:|---:|---:|---:|")
    shares: list[tuple[float, float]] = []
    for shift in (1.5, 2.0, 3.0, 4.0):
        rng = np.random.default_rng([series, int(10 * shift)])
        x = rng.normal(size=(BEFORE + AFTER, series))
        x[BEFORE:] += shift * rng.choice((-1, 1), series)
        held, mass, width = _intervals(x)
        shares.append((float(np.mean(held)), float(np.mean(mass))))
        print(
            f"| ±{shift:g}σ | {len(held) / series:.3f} | {np.mean(mass):.3f} | {np.mean(held):.3f} |"
            f" {np.mean(width):.1f} |"
        )
    return all(abs(held - mass) <= 0.03 for held, mass in shares)


def _intervals(x: Floats) -> tuple[list[bool], list[float], list[int]]:
    """Per found series: whether the interval holds the onset, the posterior in it, its width in samples."""
    bank = BocpdBank(x.shape[1])
    bank.update_batch(x[:BEFORE])
    pending: set[int] = set(np.flatnonzero(bank.probability <= ALARM).tolist())
    held, mass, width = [], [], []
    for age, row in enumerate(x[BEFORE:], start=1):
        alarm: Any = bank.update(row) > ALARM
        for i in sorted(pending & set(np.flatnonzero(alarm).tolist())):
            ((_, onset),) = bank.onsets(np.array([i]))
            if onset.age < ChangeConfig().min_age:
                continue
            pending.remove(i)
            posterior = {a: p for a, p in bank.posterior(i).items() if a < bank.regime_age[i]}
            inside = sum(p for a, p in posterior.items() if onset.newest <= a <= onset.oldest)
            held.append(onset.newest <= age <= onset.oldest)
            mass.append(inside / sum(posterior.values()))
            width.append(onset.oldest - onset.newest + 1)
    return held, mass, width
