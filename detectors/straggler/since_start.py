"""Ranks slower than their peers ever since the first step, found before warm-up is over.

Warm-up and the learning of noise and baselines hold back small effects; a rank at twice the time of its peers
needs none of them, and where all ranks have the same work a tenth needs little. With x_rt the log seconds of
rank r in step t over those of its role (its 35 % quantile, so that nearly two thirds of it may be slow), less
what its amount of work explains, or the log of one plus its loading as a share of the work, and n the steps
seen:

    low_r = the (n/4 + 1)-th smallest of x_r1 ... x_rn, so that three quarters of all steps exceed it
            (the smallest where n < 5),
    z_r = (low_r - q35 low) / max(tau, 1 %),  over the m ranks with peers,
    tau = max(lower, min(upper, 3 lower)),  lower = (q35 low - q10 low) / 0.90,  upper = (q84 - q35) / 1.38,
    G_r = (f+1)/2 * ln(1 + z_r^2 / f), at most b n   [nats], f = m - 1, and 20 more where lower <= 1 %,
          b = 1.5, 3.5 where low_r >= ln 1.5, 5.5 where low_r >= ln 2,

which is the generalised likelihood ratio of a shift under Student's t; the divisors make both spreads those
of a Gaussian. A rank with G > 15.5 and low > ln 1.15 is slow. The quantile in place of a mean bears with
compilation and loading, which fill some of the first steps, and the bound on a step with the others: no rank
is named before its eleventh step, its fifth one at 1.5 times the time of its peers, or its third one at twice
that. In steady work, in which ranks of a role lie within 2 %, no batches are uneven: b = 3.5 and low > ln
1.05 (computing machines: ln 1.08), from the eighth step on, or the fifth if all of them were slow.

A replica over several machines, of which tokens are known, needs low > ln 1.5.
"""

import math

import numpy as np
import numpy.typing as npt

from detectors.changepoint.llr_cusum import Onset, locate_onset
from detectors.peers.job_kind import FIXED_DISPERSION
from detectors.peers.node_effects import MOST_OF_MACHINE
from detectors.peers.peers import MIN_PEERS, PeerGroups, group_quantile
from detectors.peers.places.machine_classes import USUAL
from detectors.peers.ratios import Ratios
from detectors.peers.shared_work import SharedWork
from detectors.robust import nan_median, spread
from detectors.straggler.candidate import LONG_STEP, Candidate
from detectors.straggler.core import Timing
from detectors.straggler.onset_time import Dated, date_onset

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

# Steps in which it is looked for. Chosen: as many as warm-up has, after which noise is known
# (``StragglerConfig.warmup_steps``).
STEPS = 20

# Chosen: power limits and bins of one model explain up to 1.15. The work of uneven batches explains some
# tenths for some steps: 15.5 nats then take eleven.
_LEAST, _NATS_A_STEP = float(np.log(1.15)), 1.5

# Nats: with 1,000 ranks and 16 looks, exp(-15.5) leaves 0.003 false names a job of Gaussian noise.
_EVIDENCE = 15.5

# Chosen: 15.5 nats then take five steps, as many as one rank by itself is seldom held up in as a job begins.
_LARGE, _NATS_A_LARGE_STEP = float(np.log(1.5)), 3.5

# The least lasting slowdown that is sought after warm-up (``step_detector``).
_LEAST_STEADY = float(np.log(1.05))

# Chosen, of a whole machine: models and power limits differ by several per cent. Later looks tell a class
# from a fault no better.
_LEAST_MACHINE = float(np.log(1.08))

# Chosen: of fewer steps none may be quick, for one rank by itself is slow in some of a job's first; of a
# small slowdown in more, for more explains it.
_FEW, _FEW_STEADY = 5, 8

# Chosen: at twice its peers' time in each of them, three steps suffice.
_PLAIN, _NATS_A_PLAIN_STEP = float(np.log(2.0)), 5.5

# Chosen: least spread of ``low``, twice what single steps of recorded ranks differ by (0.5 %), and how surely
# that is known: ranks of ten of these recordings differ by 0.1 to 0.8 % for good.
_FLOOR, _FREEDOM = 0.01, 20.0

# Quantiles of a role besides its usual time, which is from the faster part, so that its slow ranks do not
# hide each other: its faster ranks, and where it is a Gaussian's, a sigma above the median.
_LOW, _HIGH = 0.10, 0.84

# Sigmas of a Gaussian between these quantiles. Noise of times has a long upper tail, but in a small job the
# upper side is the slow rank itself: it counts up to a multiple (chosen).
_BELOW, _ABOVE, _MOST_SKEW = 0.896, 1.380, 3.0

# Time grows with reported work no faster than this power, attention aside, which the squares stand for; above
# 1 by the error of the fit.
_MOST_SLOPE = 1.2

# Chosen, of the work: loading so much less than usual is as far as it counts, for its log has no bound.
_LEAST_MORE = -0.9

# Residual spreads from which a residual counts less (Huber 1964: 95 % efficient at a Gaussian), and rounds of
# reweighting, which settle the third digit.
_HUBER, _ROUNDS = 1.5, 5

# Sum of squares added to both amounts: some jobs pack all batches to one number of tokens. It draws slopes to
# 1: twice the tokens, or twice the length of sequences, take twice as long.
_RIDGE = 1e-2

# Variation of step times over ranks from which they do not wait for each other (``Ratios``).
_COMMON_CLOCK = 0.02

# Chosen: a fit of time against work over so many ranks is sure enough, and of 8,192 would take long.
_MOST_FITTED = 256


def slow_since_start(ratios: Ratios, timing: Timing, shared_work: SharedWork) -> list[Candidate]:
    """Return the ranks that have been far slower than their peers in ``timing`` since the first step seen.

    They are one rank, those of one machine, or in compute those of one replica whose tokens are known:
    several other machines that differ from the start are a class of machines. None where ranks have no peers,
    or do not wait for each other, and no ranks whose experts, on this machine alone, may have more work.
    """
    steps = ratios.history.count
    if steps > STEPS or _NATS_A_PLAIN_STEP * steps <= _EVIDENCE or ratios.source != "compute":
        return []
    groups = ratios.comparison.groups if timing == "compute" else ratios.comparison.everyone
    comparable = groups.peers >= MIN_PEERS
    if not comparable.any() or _is_asynchronous(ratios, steps):
        return []
    x = _beyond_work(ratios, steps) if timing == "compute" else _loading(ratios, steps)
    low = _low(x, _FEW)
    if not np.any(low[comparable] > _LEAST_STEADY):
        return []
    steady = _is_steady(x, groups, comparable)
    found: Bools = comparable & (low > (_LEAST_STEADY if steady else _LEAST))
    nodes = ratios.nodes
    machines = np.unique(nodes.index[found])
    if not machines.size or (machines.size > 1 and not (timing == "compute" and _is_replica(ratios, found))):
        return []
    # A whole machine may compute under a power limit, one of its ranks does not.
    whole = machines.size > 1 or found.sum() >= max(2.0, MOST_OF_MACHINE * nodes.sizes[machines[0]])
    if whole and timing == "compute":
        found &= low > (_LEAST_MACHINE if machines.size == 1 else _LARGE)
    proven = _evidence(low, x, comparable, steady=steady) > _EVIDENCE
    likely = [int(rank) for rank in np.flatnonzero(found & proven)]
    if timing == "compute":
        likely = [rank for rank in likely if not shared_work.may_explain(rank, found, batch_known=True)]
    return [_candidate(ratios, timing, rank, x) for rank in likely]


def _is_replica(ratios: Ratios, found: Bools) -> bool:
    """Return whether those found are a replica whose ranks report tokens, which leave some tenths of its
    batches unexplained."""
    if ratios.comparison.replicas is None or not ratios.comparison.replicas.is_one(found):
        return False
    known = np.isfinite(_log_amounts(ratios, ratios.history.count)[0]).any(axis=0)
    return bool(known[found].all())


def _is_asynchronous(ratios: Ratios, steps: int) -> bool:
    seconds = ratios.history.last("step", steps)
    middle = nan_median(seconds, axis=1)[:, None]
    apart = nan_median(np.abs(seconds / np.where(middle > 0, middle, np.nan) - 1.0).ravel())
    return bool(apart > _COMMON_CLOCK)


def _beyond_work(ratios: Ratios, steps: int) -> Floats:
    """Return log seconds over the role's [steps, ranks], less what reported work explains of them.

    With y the log seconds and w the log amounts (tokens; squared lengths over tokens), both less their median
    in the role and step, slopes b solve (sum k w w' + r) b = sum k y w + r, over all ranks and steps, with
    Huber's weights k = min(1, 1.5 s / |y - b w|), s the spread of the residuals, so that a slow rank hardly
    moves them; b = 1 where amounts do not vary. Logs relative to a step leave warm-up out, which lasts as
    long on all ranks.
    """
    v, some = ratios.history.last("v", steps), slice(None, None, math.ceil(ratios.ranks / _MOST_FITTED))
    amounts, groups = _log_amounts(ratios, steps), ratios.comparison.groups
    if not np.isfinite(amounts).any():
        return _over_role(v, groups)
    y, w = (a - groups.spread_out(group_quantile(a, groups, 0.5)) for a in (v, amounts))
    w = np.nan_to_num(w)
    read = np.isfinite(y[:, some])
    slopes = _slopes(y[:, some][read], w[:, :, some][:, read])
    return _over_role(v - np.tensordot(slopes, w, 1), groups)


def _log_amounts(ratios: Ratios, steps: int) -> Floats:
    """Return the logs of each rank's tokens and of its squared lengths over them, [2, steps, ranks]."""
    both = np.stack([ratios.history.last(name, steps) for name in ("tokens", "squares")])
    logs: Floats = np.log(np.where((both > 0) & (both < np.inf), both, np.nan))
    logs[1] -= np.nan_to_num(logs[0])
    return logs


def _slopes(y: Floats, w: Floats) -> Floats:
    """Return how log time grows with log amounts, [2], from ``y`` [n] and ``w`` [2, n]."""
    slopes, weight = np.ones(2), np.ones_like(y)
    for _ in range(_ROUNDS):
        square = (w * weight) @ w.T + _RIDGE * np.eye(2)
        slopes = np.clip(np.linalg.solve(square, (w * weight) @ y + _RIDGE), 0.0, _MOST_SLOPE)
        apart = np.abs(y - slopes @ w)
        scale = max(1.4826 * float(np.median(apart)), 1e-4) if apart.size else 1.0
        weight = np.minimum(1.0, _HUBER * scale / np.maximum(apart, 1e-9))
    return slopes


def _over_role(v: Floats, groups: PeerGroups) -> Floats:
    return v - groups.spread_out(group_quantile(v, groups, USUAL))


def _loading(ratios: Ratios, steps: int) -> Floats:
    """Return the log of one plus each rank's loading over the usual one, as a share of the work, [steps,
    ranks].

    Ranks that load less than usual show how far apart healthy ones are.
    """
    work = nan_median(ratios.history.last("compute", steps), axis=1)[:, None]
    more: Floats = _over_role(ratios.history.last("data", steps), ratios.comparison.everyone) / work
    return np.log1p(np.maximum(more, _LEAST_MORE))


def _low(x: Floats, few: int) -> Floats:
    """Return what three quarters of the steps of ``x`` exceed, [ranks], of fewer than ``few`` all; a rank
    with gaps has none."""
    quick = len(x) // 4 if len(x) >= few else 0
    low: Floats = np.sort(np.where(np.isfinite(x), x, -np.inf), axis=0)[quick]
    return low


def _is_steady(x: Floats, groups: PeerGroups, comparable: Bools) -> bool:
    """Return whether the ranks of a role have the same work: usually all but its slow ones lie near."""
    usual, low = (group_quantile(x, groups, share) for share in (USUAL, _LOW))
    apart = groups.spread_out(usual - low)[:, comparable] / _BELOW
    return bool(nan_median(apart.ravel()) <= FIXED_DISPERSION)


def _evidence(low: Floats, x: Floats, comparable: Bools, *, steady: bool) -> Floats:
    known = low[comparable & np.isfinite(low)]
    q10, q35, q84 = np.quantile(known, (_LOW, USUAL, _HIGH)).tolist()
    lower, upper = (q35 - q10) / _BELOW, (q84 - q35) / _ABOVE
    scale = max(lower, min(upper, _MOST_SKEW * lower))
    freedom = known.size - 1 + (_FREEDOM if lower <= _FLOOR else 0.0)
    z = np.maximum(low - q35, 0.0) / max(scale, _FLOOR)
    found: Floats = 0.5 * (freedom + 1.0) * np.log1p(z**2 / freedom)
    levels = [low >= _PLAIN, (low >= _LARGE) | (steady & (_low(x, _FEW_STEADY) > _LEAST_STEADY))]
    most: Floats = len(x) * np.select(levels, [_NATS_A_PLAIN_STEP, _NATS_A_LARGE_STEP], _NATS_A_STEP)
    return np.minimum(found, most)


def _candidate(ratios: Ratios, timing: Timing, rank: int, x: Floats) -> Candidate:
    own = x if timing == "compute" else np.expm1(x)
    onset = _onset(ratios, rank, x)
    first = float(ratios.history.last("ts", len(x))[0, rank])
    since_first = Dated(min(ratios.started, first), ratios.first_ts, max(ratios.first_ts, first))
    dated = date_onset(ratios, rank, onset, steps=len(x)) if onset.low else since_first
    own = own[onset.index if onset.low else 0 :]
    return Candidate(
        timing=timing,
        rank=rank,
        lasting=True,
        onset=dated,
        x=own,
        effect=nan_median(own),
        sigma=float(spread(own[:, rank])),
        baseline=0,
    )


def _onset(ratios: Ratios, rank: int, x: Floats) -> Onset:
    """Return in which step a rank became slow, by the noise of the others; the first ones may not show it."""
    work = nan_median(ratios.history.last("compute", len(x)), axis=1)
    sigma = max(float(spread(np.delete(x, rank, axis=1).ravel())), _FLOOR)
    return locate_onset(np.where(work <= LONG_STEP * nan_median(work), x[:, rank], np.nan), sigma)
