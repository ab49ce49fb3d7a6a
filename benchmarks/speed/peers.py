"""Peer scores of one tick beside the pairwise distances of Minder and an isolation forest (goals P8 and P9).

CPU time of the process (BLAS threads included), medians of interleaved rounds, float32, 20 metrics. All score
the same ranks, and ours and the pairwise distances must find the bad one; the forest often does not. The
noise of a metric is standard normal, a bad rank deviates by 6 sigma in three metrics.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from detectors.peers.peers import peer_scores

Matrix = NDArray[np.float32]
Scores = NDArray[np.floating]
METRICS = 20
BLOCK = 1024
SIZES = (1_024, 10_000, 100_000)
GOALS = {("pairwise", 1_024): 40.0, ("pairwise", 10_000): 500.0, ("forest", 10_000): 200.0}
GROWTH_GOAL, RECALL_GOAL, TOP1_GOAL = 14.0, 0.93, 0.98


def main(argv: list[str]) -> int:
    """Print a table of recall and a table of cost; return 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks peers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--trials", type=int, default=100)
    options = parser.parse_args(argv)
    right = _quality(options.trials)
    fast = _cost(options.rounds)
    return 0 if right and fast else 1


def ours(values: Matrix) -> Scores:
    """Return the distance to the coordinate-wise median in MAD units."""
    return peer_scores(values, floors=np.full(METRICS, 0.1, np.float32)).score


def pairwise(values: Matrix) -> Scores:
    """Return the sum of Euclidean distances to all others after mean/std scaling, in BLAS blocks (Minder)."""
    x = ((values - values.mean(axis=1, keepdims=True)) / values.std(axis=1, keepdims=True)).T.copy()
    squares = np.einsum("ij,ij->i", x, x)
    total = np.zeros(len(x), np.float32)
    for start in range(0, len(x), BLOCK):
        block = x[start : start + BLOCK] @ x.T
        block *= -2.0
        block += squares
        block += squares[start : start + BLOCK, None]
        np.maximum(block, 0.0, out=block)
        np.sqrt(block, out=block)
        total[start : start + BLOCK] = block.sum(axis=1)
    return total


def forest(values: Matrix) -> Scores:
    """Return the scores of scikit-learn's isolation forest, fitted to the tick."""
    from sklearn.ensemble import IsolationForest

    trees = IsolationForest(random_state=0).fit(values.T)
    score: Scores = -trees.score_samples(values.T)
    return score


CONTENDERS: dict[str, Callable[[Matrix], Scores]] = {"ours": ours, "pairwise": pairwise, "forest": forest}
MUST_FIND = ("ours", "pairwise")


def _tick(rng: np.random.Generator, ranks: int, bad: int) -> tuple[Matrix, NDArray[np.intp]]:
    """Return values [metrics, ranks] and the numbers of the bad ranks, which deviate in the same metrics."""
    values = rng.normal(size=(METRICS, ranks)).astype(np.float32)
    who = rng.choice(ranks, bad, replace=False)
    values[np.ix_(rng.choice(METRICS, 3, replace=False), who)] += 6.0
    return values, who


def _quality(trials: int) -> bool:
    print(f"| recall at k, {trials} ticks | " + " | ".join(CONTENDERS) + " |")
    print("|---|" + "---:|" * len(CONTENDERS))
    passed = True
    for ranks, share in ((64, 0.0), (64, 0.1), (64, 0.25), (1_024, 0.0), (1_024, 0.1), (1_024, 0.3)):
        bad = max(1, int(share * ranks))
        recall = _recall(trials if ranks == 64 else max(trials // 5, 1), ranks, bad)
        passed &= recall["ours"] >= (RECALL_GOAL if share else TOP1_GOAL * recall["pairwise"])
        cells = " | ".join(f"{value:.3f}" for value in recall.values())
        print(f"| N={ranks}, {bad} bad | {cells} |")
    return passed


def _recall(trials: int, ranks: int, bad: int) -> dict[str, float]:
    rng = np.random.default_rng([ranks, bad])
    found = dict.fromkeys(CONTENDERS, 0)
    # The forest takes 0.1 s a tick; a tenth of the ticks suffices for its recall.
    few = max(trials // 10, 1)
    for trial in range(trials):
        values, who = _tick(rng, ranks, bad)
        for name, score in CONTENDERS.items():
            if name != "forest" or trial < few:
                found[name] += np.isin(np.argsort(-score(values))[:bad], who).sum()
    return {name: hits / bad / (few if name == "forest" else trials) for name, hits in found.items()}


def _cost(rounds: int) -> bool:
    milliseconds = {size: _time(size, rounds) for size in SIZES}
    print("\n| CPU ms per tick, 20 metrics | " + " | ".join(f"N={size:,}" for size in SIZES) + " |")
    print("|---|" + "---:|" * len(SIZES))
    for name in CONTENDERS:
        cells = (f"{milliseconds[size][name]:,.3g}" if name in milliseconds[size] else "-" for size in SIZES)
        print(f"| {name} | " + " | ".join(cells) + " |")
    passed = True
    for (name, size), goal in GOALS.items():
        ratio = milliseconds[size][name] / milliseconds[size]["ours"]
        passed &= ratio >= goal
        print(f"\n{name} / ours at N={size:,}: {ratio:,.0f}x (goal {goal:.0f}x)", end="")
    growth = milliseconds[100_000]["ours"] / milliseconds[10_000]["ours"]
    print(f"\nours at 100,000 / at 10,000: {growth:.1f} (goal at most {GROWTH_GOAL:.0f})")
    return passed and growth <= GROWTH_GOAL


def _time(ranks: int, rounds: int) -> dict[str, float]:
    values, who = _tick(np.random.default_rng(ranks), ranks, 1)
    spent: dict[str, list[float]] = {}
    for name, score in CONTENDERS.items():
        # One tick of the pairwise distances of 100,000 ranks takes a minute, so that it is measured once.
        slow = ranks == SIZES[-1] and name != "ours"
        if slow and name == "forest":
            continue
        if name in MUST_FIND and not slow:
            assert score(values).argmax() == who[0], f"{name} did not find the bad rank"
        repeats = 1 if slow else min(rounds, 3) if name == "forest" else rounds
        for _ in range(repeats):
            score(values[:, :BLOCK])
            start = time.process_time()
            score(values)
            spent.setdefault(name, []).append((time.process_time() - start) * 1e3)
    return {name: statistics.median(times) for name, times in spent.items()}
