"""Lemons on drawn histories (`python -m benchmarks lemons`): how many are named, how soon, and false names.

A fleet's findings are drawn for 28 days: faults at a base rate, twenty times that on 1.2 % of the nodes, each
with more findings in the half hour after it, jobs of a day. The findings so far are judged at the end of each
day.
"""

import argparse
from dataclasses import dataclass, field

import numpy as np

from detectors.fleet.lemon import MachineFault, lemons

DAY = 86_400.0
PREVALENCE, HAZARD = 0.012, 20.0


@dataclass(slots=True)
class Tally:
    """Number of lemons, of those named, and of healthy nodes named; days until the lemons were named."""

    lemons: int = 0
    named: int = 0
    wrong: int = 0
    days: list[int] = field(default_factory=list)

    @property
    def recall(self) -> float:
        """Share of the lemons that were named."""
        return self.named / max(self.lemons, 1)

    @property
    def precision(self) -> float:
        """Share of those named that are lemons."""
        return self.named / max(self.named + self.wrong, 1)


def history(
    rng: np.random.Generator, *, nodes: int, rate: float, days: int
) -> tuple[list[MachineFault], set[str]]:
    """Draw the findings of a fleet, ``rate`` faults per 1,000 healthy node-days, and its lemons."""
    bad = rng.random(nodes) < PREVALENCE
    found = []
    for node in range(nodes):
        faults = rng.poisson(rate / 1000.0 * days * (HAZARD if bad[node] else 1.0))
        for at in rng.uniform(0, days * DAY, faults):
            burst = rng.uniform(0, 1800.0, rng.geometric(0.5) - 1)
            job = f"{node // 16}-{int(at // DAY)}"
            found += [MachineFault(f"n{node}", float(at + after), job) for after in (0.0, *burst)]
    return found, {f"n{node}" for node in np.flatnonzero(bad)}


def run(rate: float, *, seeds: range, nodes: int = 2000, days: int = 28) -> Tally:
    """Judge drawn fleets, day by day."""
    tally = Tally()
    for seed in seeds:
        found, bad = history(np.random.default_rng([seed, nodes]), nodes=nodes, rate=rate, days=days)
        first: dict[str, int] = {}
        for day in range(1, days + 1):
            so_far = [t for t in found if t.at <= day * DAY]
            for lemon in lemons(so_far, fleet=nodes):
                first.setdefault(lemon.machine, day)
        tally.lemons += len(bad)
        tally.named += len(first.keys() & bad)
        tally.wrong += len(first.keys() - bad)
        tally.days += [first[name] for name in sorted(first.keys() & bad)]
    return tally


def main(argv: list[str]) -> int:
    """Print a line per base rate."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks lemons", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    options = parser.parse_args(argv)
    print(
        "| faults per 1,000 node-days | precision | recall | median days until named |\n|---:|---:|---:|---:|"
    )
    for rate in (5.0, 10.0, 20.0, 40.0):
        t = run(rate, seeds=range(options.seeds))
        print(f"| {rate:g} | {t.precision:.3f} | {t.recall:.3f} | {np.median(t.days):.0f} |")
    return 0
