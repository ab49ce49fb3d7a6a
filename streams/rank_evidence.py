"""What an accusation of a rank rests on: its figures beside those of its peers and of its own past."""

import numpy as np

from detectors.robust import nan_median, spread
from detectors.straggler import Accusation
from slowrank.telemetry import Baseline, Evidence, Peers
from streams.job_view import JobView

DETECTOR = "peer_step"

_ODDS_UNEVEN_WORK = -1.0


def rank_evidence(view: JobView, a: Accusation) -> tuple[Evidence, ...]:
    """Compare the rank with its peers on what it is accused of, and on waiting where that is told."""
    steps = max(a.steps, 1)
    entries = [_against_peers(view, a, series=a.channel, metric=metric_of(view, a), steps=steps)]
    waits = view.detector.ratios.history.last("wait", steps)
    if np.isfinite(waits[:, a.rank]).any():
        entries.append(_against_peers(view, a, series="wait", metric="wait_seconds", steps=steps))
    return tuple(entries)


def metric_of(view: JobView, a: Accusation) -> str:
    """Return what the rank was compared on."""
    from_steps = view.detector.ratios.source == "step" and a.channel == "compute"
    return "step_seconds" if from_steps else f"{a.channel}_seconds"


def _against_peers(view: JobView, a: Accusation, *, series: str, metric: str, steps: int) -> Evidence:
    detector = view.detector
    rows = detector.ratios.history.last(series, steps)
    usual = nan_median(rows)
    group = detector.ratios.groups if a.peers >= 1 else detector.ratios.everyone
    members = group.members[group.index[a.rank]]
    others = usual[members[(members >= 0) & (members != a.rank)]]
    others = others[np.isfinite(others)]
    value = float(usual[a.rank])
    before = (
        detector.ratios.history.last(series, steps + 100)[:-steps, a.rank]
        if steps < detector.ratios.settled
        else None
    )
    return Evidence(
        metric=metric,
        unit="s",
        detector=DETECTOR,
        value=round(value, 6),
        baseline=_baseline(before),
        peers=None
        if not others.size
        else Peers(
            group=_group_name(view, a.rank, known=detector.ratios.roles_known),
            n=int(others.size),
            p05=round(float(np.quantile(others, 0.05)), 6),
            median=round(float(np.median(others)), 6),
            p95=round(float(np.quantile(others, 0.95)), 6),
            rank_of_subject=1 + int((others < value).sum()),
        ),
        change_at=None if a.lasting else a.onset,
    )


def _baseline(before: "np.ndarray[tuple[int], np.dtype[np.float64]] | None") -> Baseline | None:
    if before is None or np.isfinite(before).sum() < 5:
        return None
    n = int(np.isfinite(before).sum())
    # ``spread`` is a sigma, 1.4826 times the median absolute deviation.
    return Baseline(
        median=round(float(nan_median(before)), 6), mad=round(float(spread(before)) / 1.4826, 6), n=n
    )


def _group_name(view: JobView, index: int, *, known: bool) -> str:
    if not known:
        return "ranks that behave alike"
    return view.role_name(int(view.detector.stages.index[index])) or "all ranks"


def ruled_out(view: JobView, a: Accusation) -> tuple[str, ...]:
    """Name what was looked at and found no different from the peers'."""
    detector, checked = view.detector, []
    if detector.stages.members.shape[0] > 1 and a.peers >= 3:
        checked.append("imbalance.stage")
    if detector.kind.kind == "fixed" or detector.ratios.work is not None:
        checked.append("imbalance.workload")
    for series, name in (("data", "data_loading"), ("comm", "network")):
        rows = nan_median(detector.ratios.history.last(series, max(a.steps, 1)))
        others = np.delete(rows, a.rank)
        if a.channel == "compute" and np.isfinite(rows[a.rank]) and np.isfinite(others).any():
            usual = float(nan_median(others))
            # A millisecond more is nothing, however many times the peers' it is.
            if rows[a.rank] <= 1.1 * usual + 1e-3:
                checked.append(name)
    return tuple(checked)


def unexplained_work(view: JobView) -> dict[str, float]:
    """Name uneven work as the other explanation where the ranks' work varies and nothing says by what."""
    return {"imbalance.workload": _ODDS_UNEVEN_WORK} if view.detector.kind.kind == "variable" else {}


def note_of(view: JobView, a: Accusation) -> str:
    """Return what a reader should know of how the rank was judged."""
    parts = ["slow since the first step seen"] if a.onset <= view.detector.ratios.first_ts else []
    if a.channel == "rest":
        parts.append("in what it does besides computing, loading, transferring and waiting: look at its host")
    if a.excursions:
        parts.append(f"slow on and off, {a.excursions} times in the last {a.steps} steps")
    if a.peers < 3 and view.detector.ratios.roles_known:
        parts.append("too few peers in its role: judged against its own past and the other ranks'")
    if view.detector.kind.kind == "variable" and view.detector.ratios.work is None:
        parts.append("work varies between ranks and no token counts were given")
    return "; ".join(parts)
