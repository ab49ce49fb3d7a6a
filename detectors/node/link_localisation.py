"""Which link is slow, from delays between pairs of machines or along known paths.

Two views of the same question. ``classify`` reads the matrix of delays: a hot row is a sender, a hot column a
receiver, a hot cell a path (the idea of C4D, HPCA'25). ``localise`` takes the links of each path and
solves for them by regularised least squares (NetBouncer, NSDI'19).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from detectors.robust import nan_median

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp]

Pattern = Literal["sender", "receiver", "machine", "path", "congestion"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkConfig:
    """A cell is hot from ``ratio`` times the expected delay and ``sigmas`` above the others on; a row or a
    column when ``share`` of its cells are, of at least ``cells``. ``floor`` is the smallest credible sigma.

    A link is bad below ``bad`` and known when at least ``paths`` cross it; ``weight`` is NetBouncer's lambda.
    """

    # C4D's limits are not published: those of the matrix are ours.
    ratio: float = 1.5
    sigmas: float = 6.0
    floor: float = 0.05
    share: float = 0.6
    cells: int = 3
    bad: float = 0.95
    paths: int = 3
    weight: float = 1.0
    sweeps: int = 50


@dataclass(frozen=True, slots=True)
class LinkVerdict:
    """What is slow: the machine ``source`` (sender, machine), ``target`` (receiver), or the path between.

    ``ratio`` is the median of the hot cells; of congestion, of all, and no machine is named.
    """

    pattern: Pattern
    source: int | None
    target: int | None
    ratio: float


def classify(delays: Floats, config: LinkConfig | None = None) -> list[LinkVerdict]:
    """Return what is slow in ``delays`` [from, to], each over its expected delay; NaN = not measured.

    With m the median of all measured cells and s = max(0.05, 1.4826 · MAD), a cell is hot when

        d ≥ max(1.5, m + 6 s)

    A hot row (at least 60 % of its cells, three measured or more) is a slow sender, a hot column a slow
    receiver, both a slow machine, and a hot cell in neither a slow path. When m itself reaches 1.5, all paths
    are slow: congestion, and no machine is named. The reading of rows and columns follows C4D (Dong et al.,
    HPCA 2025), whose limits are not published; 1.5, 6 s and 60 % are chosen.

    >>> delays = np.ones((4, 4))
    >>> delays[2, :] = 3.0
    >>> [(v.pattern, v.source) for v in classify(delays)]
    [('sender', 2)]
    """
    config = config or LinkConfig()
    usual = float(nan_median(delays.ravel()))
    if not np.isfinite(usual):
        return []
    if usual >= config.ratio:
        return [LinkVerdict("congestion", None, None, usual)]
    sigma = max(config.floor, 1.4826 * float(nan_median(np.abs(delays - usual).ravel())))
    measured = np.isfinite(delays)
    hot = measured & (np.nan_to_num(delays) >= max(config.ratio, usual + config.sigmas * sigma))
    rows, columns = _lines(hot, measured, config), _lines(hot.T, measured.T, config)
    found = []
    for node in np.flatnonzero(rows | columns):
        cells = np.zeros_like(hot)
        cells[node, :], cells[:, node] = rows[node], columns[node]
        ratio = float(np.median(delays[cells & hot]))
        if rows[node] and columns[node]:
            found.append(LinkVerdict("machine", int(node), int(node), ratio))
        elif rows[node]:
            found.append(LinkVerdict("sender", int(node), None, ratio))
        else:
            found.append(LinkVerdict("receiver", None, int(node), ratio))
    left = hot & ~rows[:, None] & ~columns[None, :]
    return found + [
        LinkVerdict("path", int(source), int(target), float(delays[source, target]))
        for source, target in zip(*np.nonzero(left), strict=True)
    ]


def _lines(hot: Bools, measured: Bools, config: LinkConfig) -> Bools:
    """Return which rows are hot as a whole."""
    count = measured.sum(axis=1)
    lines: Bools = (count >= config.cells) & (hot.sum(axis=1) >= config.share * count)
    return lines


@dataclass(frozen=True, slots=True)
class Localised:
    """``success`` [links] in [0, 1], 1 = healthy; ``known`` [links]: enough paths cross the link.

    ``alike`` [links] numbers the sets of links that the same paths cross: they cannot be distinguished.
    """

    success: Floats
    known: Bools
    alike: Ints

    def bad(self, config: LinkConfig | None = None) -> list[tuple[int, ...]]:
        """Return the bad and known links, worst first, each with those it cannot be distinguished from."""
        limit = (config or LinkConfig()).bad
        bad = np.flatnonzero(self.known & (self.success < limit))
        worst = bad[np.argsort(self.success[bad], kind="stable")]
        sets = (tuple(np.flatnonzero(self.alike == self.alike[link]).tolist()) for link in worst)
        return list(dict.fromkeys(sets))


def localise(
    paths: Sequence[Sequence[int]], success: Floats, links: int, config: LinkConfig | None = None
) -> Localised:
    """Return per link the success that explains the paths' ``success`` [paths] as products over their links.

    As in NetBouncer (Tan et al., NSDI 2019).
    Minimises sum (y_p - prod x_l)^2 + weight * sum x_l (1 - x_l) by coordinate descent from x = 1: with a_p
    the product of the other links on p, A = sum a_p^2 and B = sum a_p y_p, the best x_l is
    clip((2B - weight) / (2 (A - weight)), 0, 1) where A > weight, else the better end point.
    """
    config = config or LinkConfig()
    x = np.ones(links)
    crossing: list[list[int]] = [[] for _ in range(links)]
    for p, path in enumerate(paths):
        for link in set(path):
            crossing[link].append(p)
    hops = _padded(paths, links)
    of_link = [hops[through] for through in crossing]
    for _ in range(config.sweeps):
        before = x.copy()
        for link, through in enumerate(crossing):
            if through:
                x[link] = _best(link, of_link[link], success[through], x, config.weight)
        if np.abs(x - before).max(initial=0.0) < 1e-9:
            break
    known = np.array([len(through) >= config.paths for through in crossing], dtype=np.bool_)
    numbers: dict[tuple[int, ...], int] = {}
    alike = [numbers.setdefault(tuple(through), len(numbers)) for through in crossing]
    return Localised(x, known, np.array(alike, dtype=np.intp))


def _padded(paths: Sequence[Sequence[int]], links: int) -> Ints:
    """Return the links of each path once, [paths, longest], filled up with the number ``links``."""
    distinct = [sorted(set(path)) for path in paths]
    padded = np.full((len(paths), max(map(len, distinct), default=0)), links, np.intp)
    for row, path in zip(padded, distinct, strict=True):
        row[: len(path)] = path
    return padded


def _best(link: int, hops: Ints, success: Floats, x: Floats, weight: float) -> float:
    """Return the best success of a link, given the paths across it, ``hops`` [paths, longest]."""
    # The number that pads short paths picks the 1.0 at the end: no link, nothing lost.
    others = np.where(hops == link, 1.0, np.append(x, 1.0)[hops]).prod(axis=1)
    a, b = float(others @ others), float(others @ success)
    if a > weight:
        return float(np.clip((2 * b - weight) / (2 * (a - weight)), 0.0, 1.0))
    # The penalty x·(1 - x) is 0 at both ends: what is left is the misfit.
    misfit_bad, misfit_healthy = float(success @ success), float(((success - others) ** 2).sum())
    return 0.0 if misfit_bad < misfit_healthy else 1.0
