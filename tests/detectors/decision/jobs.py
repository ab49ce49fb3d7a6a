"""Made-up jobs for the decision core: compute seconds in, what it reports out."""

import numpy as np

from detectors.decision.core import HypothesisCore
from detectors.decision.families import Layout
from detectors.peers.ratios import StepTimes


def noise(steps, ranks, *, seed, sd=0.01, rho=0.0):
    """Return log noise [steps, ranks] of deviation ``sd`` and lag-1 autocorrelation ``rho``."""
    rng = np.random.default_rng(seed)
    shocks = rng.standard_normal((steps, ranks)) * sd
    for step in range(1, steps):
        shocks[step] = rho * shocks[step - 1] + np.sqrt(1 - rho**2) * shocks[step]
    return shocks


def layout(ranks, *, per_node=8, **coords):
    """Return a layout of whole nodes with the given coordinates."""
    places = {name: np.asarray(at, dtype=np.intp) for name, at in coords.items()}
    return Layout(ranks, np.arange(ranks) // per_node, places)


def times(number, compute, *, tokens=None, rest=0.02):
    """Return a synchronous step of ranks that compute for so long and wait for the slowest."""
    ranks = len(compute)
    nothing = np.full(ranks, np.nan)
    busy = compute + rest
    return StepTimes(
        number=number,
        ts=np.full(ranks, 1e9 + number),
        step=np.full(ranks, np.nanmax(busy) + 0.01),
        compute=compute,
        wait=np.nanmax(busy) - busy,
        data=np.full(ranks, 0.01),
        comm=nothing,
        checkpoint=nothing,
        tokens=nothing if tokens is None else tokens,
    )


def run(compute, where, *, tokens=None, rest=None):
    """Return what a core reports of ``compute`` [steps, ranks]: (step, SlowRank), and the core."""
    core = HypothesisCore(where)
    found = []
    for number, seconds in enumerate(compute):
        step = times(
            number,
            seconds,
            tokens=None if tokens is None else tokens[number],
            rest=0.02 if rest is None else rest[number],
        )
        found += [(number, slow) for slow in core.update(step).slow]
    return found, core


def named(found):
    """Return the ranks reported."""
    return {slow.rank for _, slow in found}
