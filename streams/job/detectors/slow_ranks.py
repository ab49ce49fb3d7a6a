"""Slow ranks of a job, as the decision core explains them: for good, and on and off."""

from collections.abc import Iterator, Mapping
from typing import get_args

import msgspec

from detectors.changepoint.offline_segmentation import NEAR, OfflineCheck
from detectors.straggler.core import (
    Comparison,
    Explanation,
    HeldSlow,
    OfflineEvidence,
    PastFigures,
    SlowRank,
    Timing,
)
from slowrank.telemetry import Baseline, Evidence, Peers, Suspicion
from streams.job.aspect import Aspect, Key
from streams.job.detector import OfCore
from streams.job.rows.step_aligner import Step
from streams.job.suspicions import STEPS, WEIGHT_SLOW, dated
from streams.job.view import JobView

# Source id of evidence from the offline segmentation.
OFFLINE = "kernel_cpd"

_OF_TIMING: dict[Timing, Aspect] = {
    timing: Aspect(timing, ends_with="rank", outlast_job=True, cost="rank") for timing in get_args(Timing)
}
PART = Aspect("part", ends_with="rank", outlast_job=True)
INTERMITTENT = Aspect("intermittent", ends_with="rank", outlast_job=True, cost="rank")
STALLING = Aspect("stalling", ends_with="rank", outlast_job=True, cost="even")
COMPUTE = _OF_TIMING["compute"]

# What a rank is slow in, by the aspect of its suspicion.
_TIMINGS: dict[Aspect, Timing] = {aspect: timing for timing, aspect in _OF_TIMING.items()} | {PART: "compute"}

# Log-odds, chosen: evidence that suffices alone opens a finding by itself (``WEIGHT_SLOW``); a suspicion, or
# slowness where work varies or peers are few, needs a second kind of evidence beside it. The offline
# segmentation adds or takes away its share. Uneven work that nothing explains is the other hypothesis.
_WEIGHT_SUSPECTED = 2.0
_WEIGHT_WAITS_LEAST = 1.0
_WEIGHT_UNEVEN = -2.0
_WEIGHT_FEW_PEERS = -2.0
_WEIGHT_OFFLINE = 1.0
_WEIGHT_UNEXPLAINED = -1.0

# Peers below which a median of the others does not show who is slow: ``peers.MIN_PEERS``.
_FEW_PEERS = 3

# Transfers this much longer than the median of the peers are what is slow (chosen, as in
# ``straggler.explanation``).
_LONGER = 1.1


class SlowRanks(OfCore):
    """Ranks slow in compute, in loading or in the rest of the step, from when the core finds them; those
    that are slow as a part of their group are in its finding (``slow_groups``)."""

    aspects = tuple(_OF_TIMING.values())

    def step(self, view: JobView, step: Step) -> Mapping[Key, Suspicion]:
        """Return the ranks found slow and not recovered."""
        at = step.closed_at
        standing: dict[Key, Suspicion] = {
            (_OF_TIMING[slow.timing], view.roster[slow.rank]): suspicion_of(view, slow, at)
            for slow in view.result.slow
            if not view.core.is_part(slow.timing, slow.rank)
        }
        recovered = {(_OF_TIMING[timing], view.roster[i]) for timing, i in view.result.recovered}
        for i in view.result.excused:
            if (last := view.standing(COMPUTE).get((COMPUTE, view.roster[i]))) is not None:
                standing[COMPUTE, view.roster[i]] = _excused(last, at)
        for key, last in view.standing(*self.aspects).items():
            # The core reports who becomes slow and who recovers: whoever is neither has stayed slow.
            part = view.core.is_part(_TIMINGS[key[0]], view.roster.index(key[1]))
            if key not in standing and key not in recovered and not part:
                standing[key] = self._updated(view, key, last, at)
        return standing

    def _updated(self, view: JobView, key: Key, last: Suspicion, at: float) -> Suspicion:
        """Return the open suspicion, with new figures when they are due or suffice alone at last."""
        timing, index = _TIMINGS[key[0]], view.roster.index(key[1])
        escalates = not last.overwhelming and view.core.is_alone(timing, index)
        if not (escalates or view.open.is_due(key, at)):
            return last
        slow = view.core.describe(timing, index)
        if slow is not None:
            return suspicion_of(view, slow, at)
        # What was certain goes on to cost while its evidence is under the threshold.
        still = last.overwhelming and view.core.is_slow_still(timing, index)
        return view.open.refreshed(key, at) if still else last


class IntermittentRanks(OfCore):
    """Ranks that are slow on and off, or stall in single steps."""

    aspects = (INTERMITTENT, STALLING)

    def step(self, view: JobView, step: Step) -> Mapping[Key, Suspicion]:
        """Return the ranks found intermittent that were slow for a moment lately."""
        at = step.closed_at
        standing = {
            key: view.open.refreshed(key, at)
            for key in view.standing(*self.aspects)
            if view.core.is_intermittent(view.roster.index(key[1]))
        }
        for slow in view.result.intermittent:
            aspect = STALLING if slow.stalled else INTERMITTENT
            standing[aspect, view.roster[slow.rank]] = suspicion_of(view, slow, at)
        # How slow a rank is on and off says more than that some of those steps stall.
        intermittent = {rank for aspect, rank in standing if aspect == INTERMITTENT}
        return {key: s for key, s in standing.items() if key[0] != STALLING or key[1] not in intermittent}


def open_ranks(onsets: Mapping[Key, float], roster: tuple[int, ...]) -> Iterator[HeldSlow]:
    """Yield the slow ranks among open suspicions with these ``onsets``, by their places in the roster."""
    for (aspect, rank), onset in onsets.items():
        if aspect in _TIMINGS and rank in roster:
            yield HeldSlow(_TIMINGS[aspect], roster.index(rank), onset=onset)


def suspicion_of(view: JobView, slow: SlowRank, at: float) -> Suspicion:
    """Build a slow rank with all that it rests on."""
    why, rank = view.core.explain(slow), view.roster[slow.rank]
    cause = kind = "data.loader_slow" if slow.timing == "data" else "straggler.fail_slow"
    if slow.excursions:
        kind = "straggler.intermittent"
        cause = cause if slow.timing == "data" else kind
    weight = _weight(slow, why)
    uneven = {"imbalance.workload": _WEIGHT_UNEXPLAINED} if _may_be_work(why) else {}
    catalogue_id = "data_loading" if slow.timing == "data" else "peer_step"
    return msgspec.structs.replace(
        dated(view, view.subject(rank), kind, catalogue_id=catalogue_id, since=slow.onset, at=at),
        # Separate source ids, so that the end of a stall does not clear slow compute of the same rank.
        detector=f"{STEPS}.rest" if slow.timing == "rest" else STEPS,
        family="timing",
        onset_lo=slow.onset_lo,
        onset_hi=slow.onset_hi,
        score=round(slow.score, 3),
        log_likelihood_ratio=weight,
        overwhelming=slow.alone,
        slowdown_ratio=round(slow.ratio, 4),
        job_slowdown_ratio=round(slow.job_ratio, 4),
        ranks_on_node=view.ranks_on_node(rank),
        ranks_likely_on_node=view.ranks_likely_on_node(rank),
        ranks_in_group=why.tensor_group,
        mates=why.mates,
        evidence=(
            *(_compared(view, slow, why, entry) for entry in why.comparisons),
            *(() if why.offline is None else (_offline(why.offline),)),
        ),
        hypotheses={cause: weight, **uneven},
        ruled_out=why.ruled_out,
        note=_note(slow, why),
    )


def _excused(last: Suspicion, at: float) -> Suspicion:
    """Build that work which went on to other ranks explains why a rank was slow, better than a machine."""
    return msgspec.structs.replace(
        last,
        ts=at,
        hypotheses={**last.hypotheses, "imbalance.workload": max(last.hypotheses.values()) + WEIGHT_SLOW},
        note="slow for some steps, as other ranks before and after it: work that goes from rank to rank",
    )


def _weight(slow: SlowRank, why: Explanation) -> float:
    weight = WEIGHT_SLOW if why.believed else _WEIGHT_SUSPECTED
    # In a synchronous step the others wait for the slow one, and it waits for no rank.
    weight += _WEIGHT_WAITS_LEAST if slow.waits_least else 0.0
    weight += _WEIGHT_UNEVEN if why.work != "fixed" else 0.0
    weight += _WEIGHT_FEW_PEERS if slow.peers < _FEW_PEERS else 0.0
    if why.offline is not None:
        weight += _WEIGHT_OFFLINE if why.offline.check.confirmed else -_WEIGHT_OFFLINE
    return weight


def _compared(view: JobView, slow: SlowRank, why: Explanation, entry: Comparison) -> Evidence:
    past, peers = entry.past, entry.peers
    role = "ranks that behave alike" if why.role is None else view.role_name(why.role) or "all ranks"
    return Evidence(
        metric=entry.metric,
        unit="s",
        detector=STEPS,
        value=round(entry.value, 6),
        baseline=None if past is None else _baseline(past),
        peers=None
        if peers is None
        else Peers(
            group=role,
            n=peers.n,
            p05=round(peers.p05, 6),
            median=round(peers.median, 6),
            p95=round(peers.p95, 6),
            rank_of_subject=peers.place,
        ),
        change_at=None if slow.lasting else slow.onset,
    )


def _offline(look: OfflineEvidence) -> Evidence:
    return Evidence(
        metric=look.metric,
        unit="1",
        detector=OFFLINE,
        value=round(look.after, 6),
        baseline=_baseline(look.past),
        change_at=look.change_at,
        note=_confirmed(look.check),
    )


def _baseline(past: PastFigures) -> Baseline:
    return Baseline(median=round(past.median, 6), mad=round(past.mad, 6), n=past.n)


def _confirmed(check: OfflineCheck) -> str:
    found = "confirmed in hindsight" if check.confirmed else f"no change within {NEAR} steps of the onset"
    return found + (f"; further changes: {check.further}" if check.further else "")


def _may_be_work(why: Explanation) -> bool:
    """Return whether more work explains the slowness as well as a slow machine does."""
    return why.work == "variable" or why.work_possible or why.by_turns


def _of_rest(why: Explanation) -> str:
    """Return where in the rest of its step a rank is slow."""
    transfers = next((c for c in why.comparisons if c.metric == "comm_seconds" and c.peers is not None), None)
    if transfers is None:
        return "in what it does besides computing, loading and waiting: look at its host"
    assert transfers.peers is not None
    if transfers.value > _LONGER * transfers.peers.median:
        return "in its own transfers, for which the others wait: look at its port and link"
    return "in what it does besides computing, loading, transferring and waiting: look at its host"


def _note(slow: SlowRank, why: Explanation) -> str:
    """Return how the rank was judged, for a reader."""
    parts = ["slow since the first step seen"] if why.since_start else []
    if slow.timing == "rest":
        parts.append(_of_rest(why))
    if slow.stalled:
        often = f"{slow.excursions} times in the last {slow.steps} steps, for {slow.stalled:.1f} s each"
        where = "in loading, " if slow.timing == "data" else ""
        look = "its data loader" if slow.timing == "data" else "its host"
        parts.append(
            f"stalls {often}, {where}as no other machine does: look at {look} and at what it does then"
        )
    elif slow.excursions:
        parts.append(f"slow on and off, {slow.excursions} times in the last {slow.steps} steps")
    if slow.peers < _FEW_PEERS and why.role is not None:
        parts.append("too few peers in its role: judged against its own past and the other ranks'")
    if why.work == "variable" and not why.work_known:
        parts.append("work varies between ranks and no token counts were given")
    if why.work_possible:
        parts.append("as slow are all ranks that may have its expert or batch: more work would show the same")
    if why.by_turns:
        parts.append("others were as slow before, one after the other: work that moves would show the same")
    return "; ".join(parts)
