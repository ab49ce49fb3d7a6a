"""Suspicions of JobStage: verdicts of the pure detectors written with their subject and their evidence."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from detectors.imbalance import StageImbalance
from detectors.job_wide import Shown
from detectors.robust import nan_median, spread
from detectors.straggler import Accusation, StragglerDetector
from slowrank.telemetry import UNKNOWN_NODE, Baseline, Evidence, Peers, Subject, Suspicion
from streams.steps import Identity

Topic = Literal["compute", "data", "intermittent", "stage", "workload", "missing", "hang"]
Key = tuple[Topic, int]
"""What a suspicion of a job is about, and the rank or stage concerned (-1 = the job)."""

ABOUT_RANKS = ("compute", "data", "intermittent", "missing")

DETECTOR = "peer_step"

_WEIGHT_SLOW = 5.0
_WEIGHT_WAITS_LEAST = 1.0
_WEIGHT_UNEVEN = -2.0
_WEIGHT_FEW_PEERS = -2.0


@dataclass(frozen=True, slots=True)
class JobView:
    """What a suspicion needs to know of its job."""

    cluster: str
    job_id: str
    attempt: int
    roster: tuple[int, ...]
    identities: Mapping[int, Identity]
    detector: StragglerDetector

    @property
    def nodes(self) -> int:
        """Number of nodes the job runs on."""
        return len({self.identities[r].node for r in self.roster})

    def ranks_on_node(self, rank: int) -> int:
        """Number of the job's ranks on the node of ``rank``; 0 when the node is not known."""
        node = self.node(rank)
        return 0 if node is None else sum(self.identities[r].node == node for r in self.roster)

    def node(self, rank: int) -> str | None:
        """Return the node of ``rank``, or None when its rows named none."""
        node = self.identities[rank].node
        return None if node == UNKNOWN_NODE else node

    def subject(self, rank: int) -> Subject:
        """Return the rank as a GPU where its node and index are known, else as a rank."""
        place, node = self.identities[rank], self.node(rank)
        return Subject(
            type="rank" if place.gpu_index is None or node is None else "gpu",
            cluster=self.cluster,
            node=node,
            gpu_index=place.gpu_index,
            rank=rank,
            local_rank=place.local_rank,
            coords=dict(place.coords) or None,
            job_id=self.job_id,
            attempt=self.attempt,
        )

    def job(self, coords: dict[str, int] | None = None) -> Subject:
        """Return the job itself, or a part of it named by ``coords``."""
        return Subject(
            type="job", cluster=self.cluster, job_id=self.job_id, attempt=self.attempt, coords=coords
        )


def slow_rank(view: JobView, a: Accusation, at: float) -> Suspicion:
    """Write one accused rank."""
    weight = _WEIGHT_SLOW + (_WEIGHT_WAITS_LEAST if a.waits_least else 0.0)
    uneven = view.detector.kind.kind != "fixed"
    weight += (_WEIGHT_UNEVEN if uneven else 0.0) + (_WEIGHT_FEW_PEERS if a.peers < 3 else 0.0)
    kind = "straggler.fail_slow" if a.channel == "compute" else "data.loader_slow"
    if a.excursions:
        kind = "straggler.intermittent"
    return Suspicion(
        cluster=view.cluster,
        detector=DETECTOR,
        family="timing",
        kind=kind,
        state="raise",
        subject=view.subject(view.roster[a.rank]),
        ts=at,
        onset=a.onset,
        onset_lo=a.onset_lo,
        onset_hi=a.onset_hi,
        score=round(a.score, 3),
        log_likelihood_ratio=weight,
        overwhelming=a.alone,
        slowdown_ratio=round(a.ratio, 4),
        job_slowdown_ratio=round(a.job_ratio, 4),
        gpus=len(view.roster),
        ranks=len(view.roster),
        nodes=view.nodes,
        ranks_on_node=view.ranks_on_node(view.roster[a.rank]),
        evidence=_rank_evidence(view, a),
        hypotheses={kind: weight},
        ruled_out=_ruled_out(view, a),
        note=_note(view, a),
    )


def slow_stage(view: JobView, shown: Shown, stage: StageImbalance, at: float) -> Suspicion:
    """Write a pipeline stage with more work than the others: the job's finding, nobody's fault."""
    members = view.detector.stages.members[stage.group]
    ranks = [view.roster[i] for i in members if i >= 0]
    shared = dict(view.identities[ranks[0]].coords)
    coords = {"pp": shared["pp"]} if "pp" in shared else None
    where = f"pp={coords['pp']}" if coords else f"ranks {_spans(ranks)}"
    value = float(
        nan_median(view.detector.ratios.history.last("compute", 50)[:, members[members >= 0]].ravel())
    )
    return _about_job(
        view,
        at,
        subject=view.job(coords),
        hypothesis="imbalance.stage",
        shown=shown,
        ratio=stage.ratio,
        evidence=(Evidence(metric="compute_seconds", unit="s", detector=DETECTOR, value=value, note=where),),
        note=f"stage {where} takes {stage.ratio:.2f}x the mean of the other stages; its ranks agree",
    )


def uneven_work(view: JobView, shown: Shown, at: float) -> Suspicion:
    """Write work that differs between ranks by chance."""
    kind = view.detector.kind
    return _about_job(
        view,
        at,
        subject=view.job(),
        hypothesis="imbalance.workload",
        shown=shown,
        ratio=shown.slowdown,
        evidence=(
            Evidence(
                metric="compute_seconds.dispersion",
                unit="1",
                detector=DETECTOR,
                value=round(kind.dispersion, 4),
            ),
        ),
        note="compute differs between ranks from step to step and the slowest rank changes",
    )


def _about_job(
    view: JobView,
    at: float,
    *,
    subject: Subject,
    hypothesis: str,
    shown: Shown,
    ratio: float,
    evidence: tuple[Evidence, ...],
    note: str,
) -> Suspicion:
    return Suspicion(
        cluster=view.cluster,
        detector=DETECTOR,
        family="job",
        kind="straggler.job_wide",
        state="raise",
        subject=subject,
        ts=at,
        onset=shown.onset,
        onset_lo=shown.onset,
        onset_hi=at,
        score=1.0,
        log_likelihood_ratio=_WEIGHT_SLOW,
        overwhelming=True,
        slowdown_ratio=round(ratio, 4),
        job_slowdown_ratio=round(shown.slowdown, 4),
        gpus=len(view.roster),
        ranks=len(view.roster),
        nodes=view.nodes,
        evidence=evidence,
        hypotheses={hypothesis: _WEIGHT_SLOW},
        ruled_out=("single_rank",),
        note=note,
    )


def missing(view: JobView, rank: int, since: float, at: float) -> Suspicion:
    """Write a rank whose steps are missing while the others advance."""
    return Suspicion(
        cluster=view.cluster,
        detector="step_progress",
        family="silence",
        kind="hang.rank_missing",
        state="raise",
        subject=view.subject(rank),
        ts=at,
        onset=since,
        onset_lo=since,
        onset_hi=at,
        score=1.0,
        log_likelihood_ratio=2.0,
        gpus=len(view.roster),
        ranks=len(view.roster),
        nodes=view.nodes,
        note="no step rows of this rank while the others advance",
    )


def stalled(view: JobView, since: float, at: float, behind: list[int]) -> Suspicion:
    """Write a job without progress (key A; a second key must come from the machines)."""
    return Suspicion(
        cluster=view.cluster,
        detector="step_progress",
        family="job",
        kind="hang.job",
        state="raise",
        subject=view.job(),
        ts=at,
        onset=since,
        onset_lo=since,
        onset_hi=at,
        score=1.0,
        log_likelihood_ratio=2.0,
        gpus=len(view.roster),
        ranks=len(view.roster),
        nodes=view.nodes,
        evidence=(
            Evidence(metric="job.step_age_seconds", unit="s", detector="step_progress", value=at - since),
        ),
        note=f"ranks behind: {_spans(behind)}" if behind else "no rank is behind the others",
    )


def _rank_evidence(view: JobView, a: Accusation) -> tuple[Evidence, ...]:
    metric = "compute" if a.channel == "compute" else "data"
    steps = max(a.steps, 1)
    name = (
        "step_seconds"
        if view.detector.ratios.source == "step" and metric == "compute"
        else f"{metric}_seconds"
    )
    entries = [_against_peers(view, a, series=metric, metric=name, steps=steps)]
    waits = view.detector.ratios.history.last("wait", steps)
    if np.isfinite(waits[:, a.rank]).any():
        entries.append(_against_peers(view, a, series="wait", metric="wait_seconds", steps=steps))
    return tuple(entries)


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
    return Baseline(
        median=round(float(nan_median(before)), 6), mad=round(float(spread(before)) / 1.4826, 6), n=n
    )


def _group_name(view: JobView, index: int, *, known: bool) -> str:
    if not known:
        return "ranks that behave alike"
    coords = dict(view.identities[view.roster[index]].coords)
    return f"pp={coords['pp']}" if "pp" in coords else "all ranks"


def _ruled_out(view: JobView, a: Accusation) -> tuple[str, ...]:
    """Name what was looked at and found no different from the peers'."""
    detector, checked = view.detector, []
    if detector.stages.members.shape[0] > 1 and a.peers >= 3:
        checked.append("imbalance.stage")
    if detector.kind.kind == "fixed" or detector.ratios.tokens is not None:
        checked.append("imbalance.workload")
    for series, name in (("data", "data_loading"), ("comm", "network")):
        rows = nan_median(detector.ratios.history.last(series, max(a.steps, 1)))
        others = np.delete(rows, a.rank)
        if a.channel == "compute" and np.isfinite(rows[a.rank]) and np.isfinite(others).any():
            usual = float(nan_median(others))
            if rows[a.rank] <= 1.1 * usual + 1e-3:
                checked.append(name)
    return tuple(checked)


def _note(view: JobView, a: Accusation) -> str:
    parts = ["slow since the first step seen"] if a.onset <= view.detector.ratios.first_ts else []
    if a.excursions:
        parts.append(f"slow on and off, {a.excursions} times in the last {a.steps} steps")
    if a.peers < 3 and view.detector.ratios.roles_known:
        parts.append("too few peers in its role: judged against its own past and the other ranks'")
    if view.detector.kind.kind == "variable" and view.detector.ratios.tokens is None:
        parts.append("work varies between ranks and no token counts were given")
    return "; ".join(parts)


def _spans(ranks: list[int]) -> str:
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ",".join(f"{lo}" if lo == hi else f"{lo}-{hi}" for lo, hi in spans)
