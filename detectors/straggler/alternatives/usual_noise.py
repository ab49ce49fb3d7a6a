"""Usual noise: whether healthy ranks are as far off for as many steps."""

import math

import numpy as np
import numpy.typing as npt

from detectors.peers.ratios import Ratios
from detectors.peers.rotating_slowness import ROUND
from detectors.robust import nan_median
from detectors.straggler.candidate import FEW, HALF, Candidate

Floats = npt.NDArray[np.float64]

# Chosen: five blocks of fifty steps fit into the steps held (``StragglerConfig.history``); of 695 healthy
# ranks three blocks left two.
_LONGEST_BLOCK, _LEAST_BLOCKS = 50, 4

# Chosen: of 20 healthy ranks named in drawn jobs with slow noise 9 remain with 5 and 6 with 6; evidence of
# white noise crosses its threshold at 6.6, so that small effects on recorded steps are named as soon.
_SURE_BLOCKS = 6.0

# Chosen, of a slowdown: a healthy rank of which a block is so far off counts as slow for a spell.
_AS_FAR = 0.75

# Chosen: the scatter of four blocks of as many ranks is known to 2 %, and a step of 8,192 ranks stays cheap.
_MOST_MATES = 256


def wanders(ratios: Ratios, found: Candidate) -> bool:
    """Return whether healthy ranks are often as far off for as many steps.

    With L the steps of the slowdown (at most 50, or a quarter of those held) and k blocks of L steps, d_rb is
    the median ratio of rank r in block b less the median of these over its blocks. The sd of d over mates,
    without those that are as slow on its machine, limited to 3 robust sigmas, is the noise of such blocks,
    whatever correlates their steps: noise of hundreds of steps hardly shows in an autocorrelation of lag 1.
    Where fewer steps are held, that of L is extrapolated from shorter blocks (``is_as_usual``). (Batch means,
    Schmeiser 1982; medians, as spikes fill some blocks.) Few blocks that are far off, as those
    of ranks to which the work wanders, do not show in it: three that begin at different times are enough.
    """
    if found.lasting:
        return False
    mates = ratios.comparison.mates(found.rank)
    if mates.sum() < FEW:
        mates = np.ones(ratios.ranks, dtype=np.bool_)
    # What slows its machine is looked for and no noise; others as slow show how healthy ranks wander.
    own = ratios.nodes.index == ratios.nodes.index[found.rank]
    others = np.flatnonzero(mates & ~(own & (found.effect >= HALF * found.size)))
    if not others.size:
        return False
    # Every n-th and not the first ones, which stand on few machines.
    some = others[:: math.ceil(others.size / _MOST_MATES)]
    held = min(ratios.settled, ratios.history.capacity)
    return is_as_usual(found.size, block_length(found), ratios.history.last("x", held)[:, some])


def is_as_usual(size: float, length: int, others: Floats, *, block_steps: int | None = None) -> bool:
    """Return whether healthy ``others`` [steps, others] are often off by ``size`` for ``length`` steps.

    ``block_steps``: the length of the blocks that are compared (``length``, at most a quarter of the steps).
    From shorter ones the noise is extrapolated to ``length``: it falls as from half of them to the whole, by
    sqrt(2) for each doubling at most.
    """
    block = min(block_steps or length, len(others) // _LEAST_BLOCKS)
    if block <= 0:
        return False
    apart = _blocks_apart(others, block)
    scatter = _scatter(apart)
    halves = _scatter(_blocks_apart(others, block // 2)) if 1 < block < length else 0.0
    # Times of a coarse clock are alike in most short blocks: nothing falls there.
    if halves:
        falls = min(max(scatter / halves, math.sqrt(0.5)), 1.0)
        scatter *= falls ** math.log2(length / block)
    return size < _SURE_BLOCKS * scatter or _spells(apart, _AS_FAR * size) >= ROUND


def block_length(found: Candidate) -> int:
    """Return the steps of a block that a slowdown is held against (``wanders``)."""
    return min(found.steps, _LONGEST_BLOCK)


def _blocks_apart(x: Floats, length: int) -> Floats:
    """Return medians of ``x`` [steps, ranks] over blocks of steps less each rank's usual one, [blocks,
    ranks]."""
    blocks = len(x) // length
    middle = nan_median(x[-blocks * length :].reshape(blocks, length, -1), axis=1)
    apart: Floats = middle - nan_median(middle)
    return apart


def _scatter(blocks: Floats) -> float:
    """Return the sd of ``blocks`` [blocks, ranks], of limited values."""
    apart = np.abs(blocks[np.isfinite(blocks)])
    if not apart.size:
        return 0.0
    # A mate that did change is no noise, and would hide all others.
    limited = np.minimum(apart, 3.0 * 1.4826 * np.median(apart))
    # Of few blocks much of the scatter went into their median: n / (n - 1), as for a variance.
    return math.sqrt(float(np.mean(limited**2)) * len(blocks) / (len(blocks) - 1))


def _spells(blocks: Floats, far: float) -> int:
    """Return at how many different times ranks began to be ``far`` off, each for the first time: those of a
    machine that becomes slow, or at one position, begin together."""
    off = blocks >= far
    return len(set(off.argmax(axis=0)[off.any(axis=0)].tolist()))
