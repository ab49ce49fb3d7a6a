"""Ranks whose steps are missing while the others advance."""

from collections.abc import Mapping

import msgspec

from detectors.job.missing_rows import MissingRows
from slowrank.telemetry import UNKNOWN_NODE, Evidence, Suspicion
from streams.job.aspect import Aspect, Key
from streams.job.config import JobStageConfig
from streams.job.rows.step_aligner import Step
from streams.job.suspicions import PROGRESS, WEIGHT_SLOW, dated
from streams.job.view import JobView

MISSING = Aspect("missing", ends_with="rank")


class MissingRanks:
    """Ranks that are missing, until a row of theirs comes; one that is lost is a finding by itself.

    After a restart the ranks of the attempt before are expected again, as far as the job states a world size
    that includes them. Where it states none, only those are that were missing then, below the highest one
    that comes: the ranks of a smaller job are numbered anew, without a gap.
    """

    aspects = (MISSING,)

    def __init__(self, config: JobStageConfig) -> None:
        self._rows = MissingRows()
        self._missing: set[int] = set()
        self._before: frozenset[int] = frozenset()
        self._missing_before: frozenset[int] = frozenset()

    def restart(self, *, new_run: bool) -> None:
        """Count the missed steps anew."""
        self._before = frozenset(self._rows.known) or self._before
        self._missing_before |= self._missing
        self._rows, self._missing = MissingRows(), set()

    def step(self, view: JobView, step: Step) -> Mapping[Key, Suspicion]:
        """Return the ranks that are missing; one that reports late is not."""
        present, at = step.present | view.late, step.closed_at
        if not self._rows.steps:
            below = view.world_size or max(present, default=-1) + 1
            again = self._before if view.world_size else self._missing_before
            self._rows.expect([rank for rank in again if rank < below], at)
        if self._missing_before:
            self._missing_before -= present
        gone, back = self._rows.update(present, at)
        self._missing = (self._missing | set(gone)) - set(back)
        if not self._missing:
            return {}
        vouched = self._vouched(view, step.present)
        lost = {rank for rank in self._rows.lost(at, vouched) if rank in self._missing}
        open_ = view.standing(MISSING)
        standing: dict[Key, Suspicion] = {}
        for rank in sorted(self._missing):
            held = open_.get((MISSING, rank))
            if held is None or (rank in lost and not held.overwhelming):
                held = (
                    self._lost(view, rank, at, vouched=rank in vouched)
                    if rank in lost
                    else self._gone(view, rank, at)
                )
            standing[MISSING, rank] = held
        return standing

    def _vouched(self, view: JobView, present: frozenset[int]) -> frozenset[int]:
        """Return the missing ranks of whose nodes other ranks are ``present``."""
        nodes = {view.identities[rank].node for rank in present} - {UNKNOWN_NODE}
        return frozenset(rank for rank in self._missing if view.identities[rank].node in nodes)

    def _gone(self, view: JobView, rank: int, at: float) -> Suspicion:
        since = self._rows.last_seen(rank)
        found = dated(
            view, view.subject(rank), "hang.rank_missing", catalogue_id="rank_missing", since=since, at=at
        )
        return msgspec.structs.replace(found, note="no step rows of this rank while the others advance")

    def _lost(self, view: JobView, rank: int, at: float, *, vouched: bool) -> Suspicion:
        gone = self._gone(view, rank, at)
        age = Evidence(
            metric="rank.step_age_seconds",
            unit="s",
            detector=PROGRESS,
            value=round(at - gone.onset, 3),
            note="other ranks of its node report" if vouched else "no rank of its node reports",
        )
        return msgspec.structs.replace(
            gone,
            log_likelihood_ratio=WEIGHT_SLOW,
            overwhelming=True,
            evidence=(age,),
            # Without them its telemetry may be lost rather than the rank.
            severity=None if vouched else "warning",
            ranks_on_node=0 if vouched else view.ranks_on_node(rank),
            ranks_likely_on_node=view.ranks_likely_on_node(rank),
        )
