"""Ranks far slower than their peers ever since the first step, found before warm-up is over.

Warm-up and the learning of noise and baselines hold back small effects; a rank at twice the time of its peers
needs none of them. With x_rt the log ratio of rank r to the peers of its role in step t, less what more work
than theirs explains, and n the steps seen:

    low_r = the (n/4 + 1)-th smallest of x_r1 ... x_rn, so that three quarters of all steps exceed it
            (the smallest where n < 5),
    z_r = (low_r - median low) / max(1.4826 MAD low, 1 %),  over the ranks with peers,
    G_r = m/2 * ln(1 + z_r^2 / (m - 1)), at most b n   [nats], m the number of these ranks,
          b = 1.5, 3.5 where low_r >= ln 1.5, 5.5 where low_r >= ln 2,

which is the generalised likelihood ratio of a shift under Student's t. A rank with G > 15.5 and low > ln 1.15
is slow. The quantile in place of a mean bears with compilation and loading, which fill some of the first
steps, and the bound on a step with the others: no rank is named before its eleventh step, its fifth one at
1.5 times the time of its peers, or its third one at twice that.
"""

import numpy as np
import numpy.typing as npt

from detectors.peers.peers import MIN_PEERS
from detectors.peers.ratios import Ratios
from detectors.robust import nan_median, spread
from detectors.straggler.candidate import Candidate
from detectors.straggler.onset_time import Dated

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

STEPS = 20
"""Steps in which it is looked for. Chosen: as many as warm-up has, after which noise is known
(``StragglerConfig.warmup_steps``)."""

_LEAST, _NATS_A_STEP = float(np.log(1.15)), 1.5
"""Chosen: power limits and bins of one model explain up to 1.15. The work of uneven batches explains some
tenths for some steps: 15.5 nats then take eleven."""

_EVIDENCE = 15.5
"""Nats: with 1,000 ranks and 16 looks, exp(-15.5) leaves 0.003 false names a job of Gaussian noise."""

_LARGE, _NATS_A_LARGE_STEP = float(np.log(1.5)), 3.5
"""Chosen: 15.5 nats then take five steps, as many as one rank by itself is seldom held up in as a job
begins."""

_FEW = 5
"""Chosen: of fewer steps none may be quick, for one rank by itself is slow in some of a job's first."""

_PLAIN, _NATS_A_PLAIN_STEP = float(np.log(2.0)), 5.5
"""Chosen: at twice its peers' time in each of them, three steps suffice."""

_FLOOR = 0.01
"""Chosen: least spread of ``low``, twice what single steps of recorded ranks differ by (0.5 %)."""

_MOST_SLOPE = 1.2
"""Time grows with reported work no faster than this power, attention aside, which the squares stand for."""

_COMMON_CLOCK = 0.02
"""Variation of step times over ranks from which they do not wait for each other (``Ratios``)."""


def slow_since_start(ratios: Ratios) -> list[Candidate]:
    """Return the ranks that have been far slower than their peers since the first step seen.

    They are one rank or those of one machine: several machines that differ from the start are a class of
    machines. None where ranks have no peers, or do not wait for each other.
    """
    steps = ratios.history.count
    if steps > STEPS or _NATS_A_PLAIN_STEP * steps <= _EVIDENCE or ratios.source != "compute":
        return []
    comparable = ratios.groups.peers >= MIN_PEERS
    if not comparable.any() or _is_asynchronous(ratios, steps):
        return []
    x = _beyond_work(ratios, steps)
    low = _low(x)
    found = np.flatnonzero(comparable & (low > _LEAST))
    if not found.size or len(np.unique(ratios.nodes.index[found])) > 1:
        return []
    enough = _evidence(low, comparable, steps) > _EVIDENCE
    return [_candidate(ratios, int(rank), x) for rank in found if enough[rank]]


def _is_asynchronous(ratios: Ratios, steps: int) -> bool:
    seconds = ratios.history.last("step", steps)
    middle = nan_median(seconds, axis=1)[:, None]
    apart = nan_median(np.abs(seconds / np.where(middle > 0, middle, np.nan) - 1.0).ravel())
    return bool(apart > _COMMON_CLOCK)


def _beyond_work(ratios: Ratios, steps: int) -> Floats:
    """Return log ratios to peers [steps, ranks], less the most that reported work explains of them."""
    x = ratios.history.last("role", steps)
    for name in ("tokens", "squares"):
        amount = ratios.history.last(name, steps)
        logs = np.log(np.where(amount > 0, amount, np.nan))
        more = np.nan_to_num(logs - nan_median(logs, axis=1)[:, None])
        x = np.minimum(x, ratios.history.last("role", steps) - _MOST_SLOPE * np.maximum(more, 0.0))
    return x


def _low(x: Floats) -> Floats:
    """Return what three quarters of the steps of ``x`` exceed, [ranks], of fewer than five all; a rank with
    gaps has none."""
    quick = len(x) // 4 if len(x) >= _FEW else 0
    low: Floats = np.sort(np.where(np.isfinite(x), x, -np.inf), axis=0)[quick]
    return low


def _evidence(low: Floats, comparable: Bools, steps: int) -> Floats:
    known = low[comparable & np.isfinite(low)]
    scale = max(float(spread(known)), _FLOOR)
    z = (low - float(np.median(known))) / scale
    found: Floats = 0.5 * known.size * np.log1p(np.maximum(z, 0.0) ** 2 / max(known.size - 1, 1))
    levels = [low >= _PLAIN, low >= _LARGE]
    most: Floats = steps * np.select(levels, [_NATS_A_PLAIN_STEP, _NATS_A_LARGE_STEP], _NATS_A_STEP)
    return np.minimum(found, most)


def _candidate(ratios: Ratios, rank: int, x: Floats) -> Candidate:
    first = float(ratios.history.last("ts", len(x))[0, rank])
    return Candidate(
        timing="compute",
        rank=rank,
        lasting=True,
        onset=Dated(min(ratios.started, first), ratios.first_ts, max(ratios.first_ts, first)),
        x=x,
        effect=nan_median(x),
        sigma=float(spread(x[:, rank])),
        baseline=0,
    )
