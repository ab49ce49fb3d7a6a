"""Suspicions of JobStage: verdicts of the pure detectors written with their subject and their evidence."""

import msgspec

from detectors.imbalance import StageImbalance
from detectors.job_wide import Shown
from detectors.robust import nan_median
from detectors.shared_wait import SharedWait
from detectors.slow_network import SlowNetwork
from detectors.straggler import Accusation
from detectors.votes import SlowGroup
from slowrank.telemetry import Evidence, Subject, Suspicion
from streams.job_view import JobView
from streams.progress import Stall
from streams.rank_evidence import DETECTOR, metric_of, note_of, rank_evidence, ruled_out, unexplained_work
from streams.second_look import second_look
from streams.tensor_mates import mates

ABOUT_MACHINES = ("compute", "data", "rest", "intermittent", "transfer")
"""What stays as it is when the job ends: no recovery has been seen."""

ABOUT_RANKS = (*ABOUT_MACHINES, "missing")

VOTES = "group_votes"
PROGRESS = "step_progress"

_WEIGHT_SLOW = 5.0
_WEIGHT_SUSPECTED = 2.0
_WEIGHT_TRANSFER = 3.0
_WEIGHT_WAITS_LEAST = 1.0
_WEIGHT_UNEVEN = -2.0
_WEIGHT_FEW_PEERS = -2.0
"""Log-odds. Believed evidence opens a finding by itself; a suspicion, a transfer told by its groups alone, or
slowness where work varies or peers are few, needs a second kind of evidence beside it."""


def slow_rank(view: JobView, a: Accusation, at: float) -> Suspicion:
    """Write one accused rank."""
    weight = _weight(view, a)
    look = second_look(view.detector.ratios, a, metric=metric_of(view, a))
    weight += look.weight
    kind = "data.loader_slow" if a.channel == "data" else "straggler.fail_slow"
    # A voice of its own: that a rank stalls no more does not end that it computes longer.
    detector = f"{DETECTOR}.rest" if a.channel == "rest" else DETECTOR
    group = view.tensor_group(view.roster[a.rank]) if a.channel == "compute" else ()
    if a.excursions:
        kind = "straggler.intermittent"
    return Suspicion(
        cluster=view.cluster,
        detector=detector,
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
        ranks_in_group=len(group),
        mates=mates(view.detector, a, group),
        evidence=(*rank_evidence(view, a), *look.evidence),
        hypotheses={kind: weight, **unexplained_work(view)},
        ruled_out=ruled_out(view, a),
        note=note_of(view, a),
    )


def _weight(view: JobView, a: Accusation) -> float:
    """Return the log-odds of an accusation; once believed it stays so for as long as it stands."""
    believed = a.alone or bool(view.detector.channels[a.channel].believed[a.rank])
    weight = _WEIGHT_SLOW if believed else _WEIGHT_SUSPECTED
    # In a synchronous step the others wait for the slow one, and it waits for nobody.
    weight += _WEIGHT_WAITS_LEAST if a.waits_least else 0.0
    weight += _WEIGHT_UNEVEN if view.detector.kind.kind != "fixed" else 0.0
    return weight + (_WEIGHT_FEW_PEERS if a.peers < 3 else 0.0)


def slow_stage(view: JobView, shown: Shown, stage: StageImbalance, at: float) -> Suspicion:
    """Write a stage, or another group, with more work than the others: the job's finding, nobody's fault."""
    members = view.detector.stages.members[stage.group]
    role = view.role(stage.group)
    coords = {name: value for name, value in role.items() if isinstance(value, int)}
    where = view.role_name(stage.group) or f"ranks {_spans([view.roster[i] for i in members if i >= 0])}"
    value = float(
        nan_median(view.detector.ratios.history.last("compute", 50)[:, members[members >= 0]].ravel())
    )
    return _about_job(
        view,
        at,
        subject=view.job(coords or None),
        hypotheses={"imbalance.stage": _WEIGHT_SLOW},
        slowdown=shown.slowdown,
        since=(shown.onset_lo, shown.onset),
        ratio=stage.ratio,
        evidence=(Evidence(metric="compute_seconds", unit="s", detector=DETECTOR, value=value, note=where),),
        note=f"{where}: {stage.ratio:.2f}x the mean of the other groups; its ranks agree",
    )


def uneven_work(view: JobView, shown: Shown, at: float) -> Suspicion:
    """Write work that differs between ranks by chance."""
    kind = view.detector.kind
    return _about_job(
        view,
        at,
        subject=view.job(),
        hypotheses={"imbalance.workload": _WEIGHT_SLOW},
        slowdown=shown.slowdown,
        since=(shown.onset_lo, shown.onset),
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


def shared_wait(view: JobView, shown: Shown, wait: SharedWait, at: float) -> Suspicion:
    """Write a wait of all ranks that has become longer: for their data, or for what nobody measures."""
    data = shown.kind == "input"
    what = "each rank waits for its data" if data else "no rank computes, loads or transfers"
    return _about_job(
        view,
        at,
        subject=view.job(),
        hypotheses={"data" if data else "unmeasured": _WEIGHT_SLOW},
        slowdown=shown.slowdown,
        since=(shown.onset_lo, shown.onset),
        ratio=shown.slowdown,
        evidence=(
            Evidence(
                metric="data_seconds" if data else "step_seconds.rest",
                unit="s",
                detector=DETECTOR,
                value=round(wait.seconds, 6),
                note="the shortest of all ranks: no rank makes the others wait so long",
            ),
        ),
        note=f"{what} for {wait.seconds:.3g} s of a step, {wait.usual:.3g} s before; compute is as before",
    )


def slow_network(view: JobView, found: SlowNetwork, at: float) -> Suspicion:
    """Write transfers that take longer for the whole job: congestion, or one link that all wait for."""
    return _about_job(
        view,
        at,
        subject=view.job(),
        # One slow link of a ring looks like congestion to all of its ranks; the latter is more frequent.
        hypotheses={"congestion": _WEIGHT_SLOW, "link.nic_slow": _WEIGHT_SLOW - 1.0},
        slowdown=found.job_slowdown,
        since=(found.onset_lo, found.onset),
        ratio=found.ratio,
        evidence=(
            Evidence(
                metric="comm_seconds", unit="s", detector=DETECTOR, value=round(found.seconds, 6),
                note="the shortest of all ranks: the transfer itself, without waiting",
            ),
        ),
        note=f"collectives take {found.ratio:.2f}x as long for all ranks alike; compute is as before",
    )  # fmt: skip


def _about_job(
    view: JobView,
    at: float,
    *,
    subject: Subject,
    hypotheses: dict[str, float],
    slowdown: float,
    since: tuple[float, float],
    ratio: float,
    evidence: tuple[Evidence, ...],
    note: str,
) -> Suspicion:
    """Write what holds for the job as a whole; its first slow step began and ended ``since``."""
    onset_lo, onset = since
    return Suspicion(
        cluster=view.cluster,
        detector=DETECTOR,
        family="job",
        kind="straggler.job_wide",
        state="raise",
        subject=subject,
        ts=at,
        onset=onset,
        onset_lo=onset_lo,
        onset_hi=at,
        score=1.0,
        log_likelihood_ratio=_WEIGHT_SLOW,
        overwhelming=True,
        slowdown_ratio=round(ratio, 4),
        job_slowdown_ratio=round(slowdown, 4),
        gpus=len(view.roster),
        ranks=len(view.roster),
        nodes=view.nodes,
        evidence=evidence,
        hypotheses=hypotheses,
        ruled_out=("single_rank",),
        note=note,
    )


def slow_group(
    view: JobView, group: SlowGroup, comm: float, *, step: float, since: float, at: float
) -> Suspicion:
    """Write a group whose transfers take ``comm`` seconds of each ``step``: the job's finding, no rank's."""
    ranks = [view.roster[i] for i in group.members.tolist()]
    shared = dict(view.identities[ranks[0]].coords)
    del shared[group.dimension]
    extra = comm * (1.0 - 1.0 / group.ratio)
    told = Evidence(
        metric="comm_seconds",
        unit="s",
        detector=VOTES,
        value=round(comm, 6),
        note=f"{len(ranks)} ranks that differ in {group.dimension} only, each as likely as the others",
    )
    said = _about_job(
        view,
        at,
        subject=view.job(shared or None),
        hypotheses={"group": _WEIGHT_SLOW},
        # Where nearly the whole step is said to be transfer, the rest is too short to divide by.
        slowdown=step / max(step - extra, 0.1 * step),
        since=(since, since),
        ratio=group.ratio,
        evidence=(told,),
        note="a link of one of its ranks; which one, step times cannot tell",
    )
    return msgspec.structs.replace(
        said, detector=VOTES, onset_hi=since, ruled_out=("single_rank", "congestion")
    )


def slow_transfer(view: JobView, rank: int, share: float, *, since: float, at: float) -> Suspicion:
    """Write the one rank in which slow groups of two dimensions meet, with its probability."""
    return msgspec.structs.replace(
        _standing(view, view.subject(rank), "link.nic_slow", since=since, at=at),
        detector=VOTES,
        family="timing",
        log_likelihood_ratio=_WEIGHT_TRANSFER,
        note=f"in all slow groups, probability {share:.2f}",
    )


def missing(view: JobView, rank: int, since: float, at: float) -> Suspicion:
    """Write a rank whose steps are missing while the others advance."""
    return msgspec.structs.replace(
        _standing(view, view.subject(rank), "hang.rank_missing", since=since, at=at),
        note="no step rows of this rank while the others advance",
    )


def stalled(view: JobView, stall: Stall, behind: list[int]) -> Suspicion:
    """Write a job without progress (key A; a second key must come from the machines)."""
    age = Evidence(
        metric="job.step_age_seconds",
        unit="s",
        detector=PROGRESS,
        value=stall.at - stall.since,
        note=f"ranks behind: {_spans(behind)}" if behind else "no rank is behind the others",
    )
    return msgspec.structs.replace(
        _standing(view, view.job(), "hang.job", since=stall.since, at=stall.at),
        family="job",
        score=round(stall.score, 4),
        severity="critical" if stall.certain else "info",
        evidence=(age,),
    )


def _standing(view: JobView, subject: Subject, kind: str, *, since: float, at: float) -> Suspicion:
    """Write what has held since a moment that is known, as one sign among the several it needs."""
    return Suspicion(
        cluster=view.cluster,
        detector=PROGRESS,
        family="silence",
        kind=kind,
        state="raise",
        subject=subject,
        ts=at,
        onset=since,
        onset_lo=since,
        onset_hi=since,
        score=1.0,
        log_likelihood_ratio=2.0,
        gpus=len(view.roster),
        ranks=len(view.roster),
        nodes=view.nodes,
    )


def _spans(ranks: list[int]) -> str:
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ",".join(f"{lo}" if lo == hi else f"{lo}-{hi}" for lo, hi in spans)
