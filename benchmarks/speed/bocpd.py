"""Speed and exactness of the BOCPD bank beside fast-bocpd and river, same data, same run (goals P1-P4, P7).

Thread CPU time, medians of interleaved rounds. All get the same standardised normal samples; each posterior
is checked against the untruncated float64 reference before it is timed, and river's detectors must detect a
step. A bank larger than the caches is timed as well.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.speed.bocpd_reference import run_length_posterior
from detectors.changepoint.bank import BocpdBank, resolve_backend
from detectors.changepoint.bocpd import BocpdConfig
from detectors.changepoint.winsorise import Winsoriser

Posterior = Callable[[NDArray[np.float64], BocpdConfig], NDArray[np.float64]]

HAZARD = 1 / 250
PEER_SLOTS = 200

# Samples before timing: more than the cap of a run, the steady state of a bank.
WARM_UP = 600

GOALS = {("numba", 200): 60, ("numpy", 200): 25, ("numba", 64): 120, ("numpy", 64): 60}

# mu and beta are read and written, W is read: five float32.
BYTES_PER_SLOT = 20

BANDWIDTH_SLOTS = 208
BANDWIDTH_GOALS = {"numba": 0.45, "numpy": 0.15}
LARGE_BANK = 262_144


@dataclass(frozen=True, slots=True)
class Contender:
    """One implementation: `step(sample)` advances every series by one sample."""

    name: str
    goal: int
    step: Callable[[NDArray[np.float32]], Any]
    samples: int


def main(argv: list[str]) -> int:
    """Print tables of exactness and speed; return 1 when a posterior is wrong or a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks bocpd", description=__doc__)
    parser.add_argument("--series", type=int, default=10_240)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args(argv)
    backends = ["numpy"] if resolve_backend("auto") == "numpy" else ["numba", "numpy"]
    exact = _exactness(backends)
    fast = _speed(backends, options.series, options.rounds)
    if "numba" in backends:
        _bandwidth(backends, options.series, options.rounds)
    return 0 if exact and fast else 1


def _exactness(backends: list[str]) -> bool:
    print("| posterior against the float64 reference, t < R | R=100 | R=200 | R=500 | limit |")
    print("|---|---:|---:|---:|---:|")
    candidates: list[tuple[str, float, Posterior]] = [
        ("fast-bocpd 1.0.0, folded index", 1e-11, _peer_posterior),
        ("numpy float64", 1e-11, partial(_bank_posterior, "numpy", np.float64)),
    ]
    for backend in backends:
        candidates.append((f"{backend} float32", 1e-4, partial(_bank_posterior, backend, np.float32)))
    passed = True
    for name, limit, posterior in candidates:
        errors = [_largest_error(posterior, slots) for slots in (100, 200, 500)]
        passed &= max(errors) <= limit
        print(f"| {name} | " + " | ".join(f"{error:.1e}" for error in errors) + f" | {limit:.0e} |")
    return passed


def _largest_error(posterior: Posterior, slots: int) -> float:
    config = _unit_config(slots)
    x = np.random.default_rng(slots).normal(size=slots - 1)
    x[slots // 2 :] += 2
    return float(np.abs(posterior(x, config) - run_length_posterior(x, config)).max())


def _unit_config(slots: int) -> BocpdConfig:
    return BocpdConfig(hazard=HAZARD, slots=slots, kappa0=1.0, alpha0=1.0, beta0=1.0)


def _peer(slots: int) -> Any:
    import fast_bocpd

    return fast_bocpd.BOCPD(
        fast_bocpd.GaussianNIG(0, 1, 1, 1), fast_bocpd.ConstantHazard(1 / HAZARD), max_run_length=slots
    )


def _peer_posterior(x: NDArray[np.float64], config: BocpdConfig) -> NDArray[np.float64]:
    peer, rows = _peer(config.slots), np.zeros((len(x), len(x)))
    for t, value in enumerate(x):
        posterior, _ = peer.update(value)
        # It starts with two identical runs; together they are the first one.
        posterior[t] += posterior[t + 1]
        rows[t, : t + 1] = posterior[: t + 1]
    return rows


def _bank_posterior(
    backend: Any, dtype: type[np.floating], x: NDArray[np.float64], config: BocpdConfig
) -> NDArray[np.float64]:
    bank, rows = BocpdBank(1, config=config, backend=backend, dtype=dtype), np.zeros((len(x), len(x)))
    for t, value in enumerate(x):
        bank.update([value])
        for age, probability in bank.posterior(0).items():
            rows[t, age - 1] = probability
    return rows


def _speed(backends: list[str], series: int, rounds: int) -> bool:
    rng = np.random.default_rng(0)
    data = rng.normal(size=(WARM_UP, series)).astype(np.float32)
    contenders = [_peer_contender(data)]
    contenders += [_river_contender(data, name) for name in ("ADWIN", "PageHinkley")]
    contenders += [_bank_contender(data, backend, slots) for slots in (200, 64) for backend in backends]
    spent: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for _ in range(rounds):
        samples = rng.normal(size=(max(c.samples for c in contenders), series)).astype(np.float32)
        for contender in contenders:
            start = time.thread_time()
            for sample in samples[: contender.samples]:
                contender.step(sample)
            spent[contender.name].append((time.thread_time() - start) / contender.samples / series)
    medians = {name: statistics.median(values) for name, values in spent.items()}
    return _report(contenders, medians, series)


def _peer_contender(data: NDArray[np.float32]) -> Contender:
    peers = [_peer(PEER_SLOTS) for _ in range(data.shape[1])]
    for peer, column in zip(peers, data[-PEER_SLOTS - 10 :].T, strict=True):
        peer.batch_update(column.astype(np.float64))

    def step(sample: NDArray[np.float32]) -> None:
        for peer, value in zip(peers, sample.tolist(), strict=True):
            peer.update(value)

    return Contender("fast-bocpd 1.0.0 `update()`, R=200", 1, step, samples=1)


def _river_contender(data: NDArray[np.float32], name: str) -> Contender:
    from river import drift

    make: Callable[[], Any] = getattr(drift, name)
    probe = make()
    seen = False
    for value in np.concatenate((data[:300, 0], data[:300, 0] + 5)).tolist():
        probe.update(value)
        seen |= probe.drift_detected
    assert seen, f"river's {name} did not see a step of 5 sigma"
    detectors = [make() for _ in range(data.shape[1])]
    for detector, column in zip(detectors, data[-200:].T.tolist(), strict=True):
        for value in column:
            detector.update(value)

    def step(sample: NDArray[np.float32]) -> None:
        for detector, value in zip(detectors, sample.tolist(), strict=True):
            detector.update(value)

    return Contender(f"river `{name}.update()`", 0, step, samples=1)


def _bank_contender(data: NDArray[np.float32], backend: Any, slots: int) -> Contender:
    series = data.shape[1]
    goal = GOALS[backend, slots]
    if slots == 64:
        bank, clip = BocpdBank(series, backend=backend), Winsoriser(series, limit=4.0, run=3)
        bank.update_batch(data)
        name = f"{backend}, default (64 slots, absorb, clip)"
        return Contender(name, goal, lambda sample: bank.update(clip(sample.astype(np.float64))), samples=10)
    bank = BocpdBank(series, config=_unit_config(slots), backend=backend)
    bank.update_batch(data)
    return Contender(f"{backend}, R={slots}", goal, bank.update, samples=10)


def _bandwidth(backends: list[str], series: int, rounds: int) -> None:
    """Print the share of the triad's bandwidth of an update with 208 slots (P3), and of a bank beyond the
    caches.

    A missed goal is no failure: the ratio of arithmetic to memory bandwidth depends on the core's clock.
    """
    triad = _triad()
    print(f"\ntriad a = b + s·c: {triad / 1e9:.1f} GB/s\n")
    print("| bank | ns per update | share of the triad's bandwidth | goal |\n|---|---:|---:|---:|")
    for backend in backends:
        for slots, count in ((BANDWIDTH_SLOTS, series), (64, LARGE_BANK)):
            seconds = _update_seconds(backend, slots, count, rounds)
            share = BYTES_PER_SLOT * slots / seconds / triad
            goal = BANDWIDTH_GOALS[backend] if slots == BANDWIDTH_SLOTS else 0.0
            print(f"| {backend}, {count} x {slots} | {seconds * 1e9:.0f} | {share:.2f} | {goal or '-'} |")


def _triad() -> float:
    """Return the bytes per second of a = b + s·c in one compiled thread, beyond caches, the best of ten."""
    from numba import njit

    def triad(a: Any, b: Any, c: Any, s: Any) -> None:
        for i in range(len(a)):
            a[i] = b[i] + s * c[i]

    a, b, c = np.zeros(2**24, np.float32), np.ones(2**24, np.float32), np.ones(2**24, np.float32)
    compiled = njit(fastmath=True)(triad)
    compiled(a, b, c, np.float32(3.0))
    best = np.inf
    for _ in range(10):
        start = time.thread_time()
        compiled(a, b, c, np.float32(3.0))
        best = min(best, time.thread_time() - start)
    assert a[-1] == 4.0
    return 3 * a.nbytes / best


def _update_seconds(backend: Any, slots: int, series: int, rounds: int) -> float:
    rng = np.random.default_rng(1)
    bank = BocpdBank(series, config=BocpdConfig(slots=slots), backend=backend)
    samples = rng.normal(size=(4, series)).astype(np.float32)
    for t in range(slots + 8):
        bank.update(samples[t % 4])
    spent = []
    for _ in range(rounds):
        start = time.thread_time()
        for sample in samples:
            bank.update(sample)
        spent.append((time.thread_time() - start) / samples.size)
    return statistics.median(spent)


def _report(contenders: list[Contender], medians: dict[str, float], series: int) -> bool:
    print(f"\n| {series} series | ns per update | M updates/s/core | times fast-bocpd | goal |")
    print("|---|---:|---:|---:|---:|")
    base = medians[contenders[0].name]
    for contender in contenders:
        seconds = medians[contender.name]
        print(
            f"| {contender.name} | {seconds * 1e9:,.0f} | {1e-6 / seconds:.2f} | {base / seconds:.1f} |"
            f" {contender.goal or '-'} |"
        )
    trivial = medians[contenders[1].name]
    ours = min(seconds for name, seconds in medians.items() if "default" in name)
    print(f"\ndefault bank / river ADWIN: {ours / trivial:.2f} (goal at most 1.0)")
    return ours <= trivial and all(base / medians[c.name] >= c.goal for c in contenders)
