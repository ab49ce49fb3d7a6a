"""What the finding of a slow rank rests on: figures beside its peers, its own past, and a look in hindsight.

Made when a slow rank is reported, never step by step.
"""

import numpy as np

from detectors.changepoint.llr_cusum import Onset
from detectors.changepoint.offline_segmentation import WINDOW, offline_check
from detectors.peers.ratios import Ratios
from detectors.peers.shared_work import SharedWork
from detectors.robust import Floats, nan_median, spread
from detectors.straggler.candidate import deviations, series_of
from detectors.straggler.core import (
    Comparison,
    Explanation,
    Ints,
    OfflineEvidence,
    PastFigures,
    PeerFigures,
    SlowRank,
)
from detectors.straggler.evidence.timing_channel import TimingChannel
from detectors.straggler.mates import TensorGroup, began_apart, mates
from detectors.straggler.onset_time import date_onset

# Steps before the onset that its own past is taken from. Chosen: those of a baseline (``StragglerConfig``).
_PAST_STEPS = 100

# Chosen: the median of fewer steps is not worth being shown.
_LEAST_PAST = 5

# Chosen: a rank loads or transfers no longer than its peers up to a tenth and a millisecond more.
_MORE, _MORE_SECONDS = 1.1, 1e-3


# Chosen, of a rank's own slowdown: from here on others are as slow (``alternatives``).
_AS_SLOW = 0.5


def explain(
    ratios: Ratios,
    channel: TimingChannel,
    slow: SlowRank,
    group: TensorGroup,
    shared: SharedWork,
    *,
    with_it: Ints | None = None,
    by_turns: bool = False,
) -> Explanation:
    """Return what a slow rank of this step rests on; ``group`` is its tensor-parallel group, ``shared`` who
    gets more work together, ``with_it`` who is slow as one with it: no peer of it. ``by_turns``: others were
    as slow before it, one after the other."""
    by_turns = by_turns and slow.timing == "compute" and ratios.work is None
    work_possible = _may_be_work(ratios, channel, slow, shared)
    return Explanation(
        comparisons=_stall(ratios, slow) if slow.stalled else _compare(ratios, slow, with_it),
        offline=None if slow.stalled else _offline_evidence(ratios, slow, metric=_metric_of(ratios, slow)),
        role=ratios.comparison.groups.members_with(slow.rank) if ratios.roles_known else None,
        # Once believed it stays so for as long as it is slow.
        believed=slow.alone or bool(channel.believed[slow.rank]),
        work=ratios.kind.kind,
        work_known=ratios.work is not None,
        work_possible=work_possible,
        by_turns=by_turns,
        since_start=slow.onset <= ratios.first_ts,
        ruled_out=() if slow.stalled else _ruled_out(ratios, slow, work_possible=work_possible or by_turns),
        tensor_group=group.members.size,
        mates=mates(ratios, channel, slow, group),
    )


def _compare(ratios: Ratios, slow: SlowRank, with_it: Ints | None) -> tuple[Comparison, ...]:
    """Compare the rank with its peers on the timing it is slow in, and where these are reported on waiting,
    and on transfers if they are part of that timing."""
    entries = [_compared(ratios, slow, with_it, series=slow.timing, metric=_metric_of(ratios, slow))]
    for series in ("comm", "wait") if slow.timing == "rest" else ("wait",):
        if np.isfinite(ratios.history.last(series, max(slow.steps, 1))[:, slow.rank]).any():
            entries.append(_compared(ratios, slow, with_it, series=series, metric=f"{series}_seconds"))
    return tuple(entries)


def _stall(ratios: Ratios, slow: SlowRank) -> tuple[Comparison, ...]:
    """Return how much longer than the others a rank takes in the steps in which it stalls."""
    step = float(nan_median(ratios.history.last("step", max(slow.steps, 1)).ravel()))
    return (Comparison("step_seconds.stalled", slow.stalled, PastFigures(step, 0.0, slow.steps), None),)


def _metric_of(ratios: Ratios, slow: SlowRank) -> str:
    """Return the name of the seconds that the rank was compared on."""
    from_steps = ratios.source == "step" and slow.timing == "compute"
    return "step_seconds" if from_steps else f"{slow.timing}_seconds"


def _past_figures(before: Floats) -> PastFigures:
    """Return median and MAD of what was read of ``before`` [steps]."""
    # ``spread`` is a sigma, 1.4826 times the median absolute deviation.
    mad = float(spread(before)) / 1.4826
    return PastFigures(float(nan_median(before)), mad, int(np.isfinite(before).sum()))


def _may_be_work(ratios: Ratios, channel: TimingChannel, slow: SlowRank, shared: SharedWork) -> bool:
    """Return whether all who get work together with the rank are as slow as it, since about when it is."""
    if slow.timing != "compute":
        return False
    steps = max(slow.steps, 1)
    effect = nan_median(deviations(ratios, channel, "compute", steps, lasting=slow.lasting))
    since = channel.onset[slow.rank] if channel.raised[slow.rank] else slow.onset
    as_slow = (effect >= _AS_SLOW * effect[slow.rank]) & ~began_apart(ratios, channel, since)
    batch_known = bool(np.isfinite(ratios.history.last("tokens", steps)[:, slow.rank]).any())
    return shared.may_explain(slow.rank, as_slow, batch_known=batch_known)


def _ruled_out(ratios: Ratios, slow: SlowRank, *, work_possible: bool) -> tuple[str, ...]:
    """Name the other explanations that were looked at and found no different from the peers'."""
    checked = []
    if ratios.comparison.groups.members.shape[0] > 1 and slow.peers >= 3:
        checked.append("imbalance.stage")
    if not work_possible and (ratios.kind.kind == "fixed" or ratios.work is not None):
        checked.append("imbalance.workload")
    parts = (("data", "data_loading"), ("comm", "network")) if slow.timing == "compute" else ()
    for series, name in parts:
        usual = nan_median(ratios.history.last(series, max(slow.steps, 1)))
        # NaN where nothing was read: then nothing is ruled out.
        if usual[slow.rank] <= _MORE * float(nan_median(np.delete(usual, slow.rank))) + _MORE_SECONDS:
            checked.append(name)
    return tuple(checked)


def _compared(
    ratios: Ratios, slow: SlowRank, with_it: Ints | None, *, series: str, metric: str
) -> Comparison:
    steps, rank = max(slow.steps, 1), slow.rank
    usual = nan_median(ratios.history.last(series, steps))
    group = ratios.comparison.groups if slow.peers >= 1 else ratios.comparison.everyone
    members = group.members[group.index[rank]]
    aside = np.array([rank]) if with_it is None else with_it
    others = usual[members[(members >= 0) & ~np.isin(members, aside)]]
    others = others[np.isfinite(others)]
    value = float(usual[rank])
    past = None
    if steps < ratios.settled:
        past = _past_figures(ratios.history.last(series, steps + _PAST_STEPS)[:-steps, rank])
    return Comparison(
        metric,
        value,
        past if past is not None and past.n >= _LEAST_PAST else None,
        _peers(others, value) if others.size else None,
    )


def _peers(others: Floats, value: float) -> PeerFigures:
    low, middle, high = (float(np.quantile(others, share)) for share in (0.05, 0.5, 0.95))
    return PeerFigures(int(others.size), low, middle, high, 1 + int((others < value).sum()))


def _offline_evidence(ratios: Ratios, slow: SlowRank, *, metric: str) -> OfflineEvidence | None:
    """Segment the rank's last ratios to its peers, offline; ``metric`` names the seconds they are ratios of.

    None for a rank that was slow from the start or is slow on and off, which has no single change to look
    for, and where the segmentation gives no answer.
    """
    if slow.lasting or slow.excursions:
        return None
    x = ratios.history.last(series_of(slow.timing), min(WINDOW, ratios.settled))[:, slow.rank]
    check = offline_check(x, slow.steps)
    if check is None:
        return None
    at = len(x) - check.age
    past = _past_figures(x[:at])
    change_at = None
    if check.confirmed:
        change_at = date_onset(ratios, slow.rank, Onset(at, at, at), steps=len(x)).at
    return OfflineEvidence(
        check,
        f"{metric}.ratio",
        _ratio(slow, check.after),
        PastFigures(_ratio(slow, check.before), past.mad, past.n),
        change_at,
    )


def _ratio(slow: SlowRank, level: float) -> float:
    """Return compute, a log ratio, as a ratio; the other timings are excess shares of the work."""
    return float(np.exp(level)) if slow.timing == "compute" else 1.0 + level
