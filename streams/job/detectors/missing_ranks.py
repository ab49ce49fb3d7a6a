"""Ranks whose steps are missing while the others advance."""

import math
from collections.abc import Mapping

import msgspec

from detectors.job.missing_rows import MissingRows
from detectors.straggler.core import DecisionCore
from slowrank.telemetry import UNKNOWN_NODE, Evidence, Suspicion
from streams.job.aspect import Aspect, Key
from streams.job.config import JobStageConfig
from streams.job.rows.step_aligner import Step
from streams.job.suspicions import PROGRESS, WEIGHT_SLOW, dated
from streams.job.view import JobView

MISSING = Aspect("missing", ends_with="rank")

# Share of a node's ranks, from which on they are reported as the node: as the finding stage gathers them
# (``FindingConfig.node_group_share``). Fewer are reported at once, and each by itself.
_MOST_OF_NODE = 0.75


class MissingRanks:
    """Ranks that are missing, until a row of theirs comes; one that is lost is a finding by itself.

    Many ranks at once are the telemetry, unless they are those of one machine. Ranks that were last seen when
    others moved to another node are not missing: a job that goes on smaller numbers its ranks anew.

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
        self._core: DecisionCore | None = None
        self._nodes: dict[int, str] = {}
        self._moved_at = -math.inf

    def restart(self, *, new_run: bool) -> None:
        """Count the missed steps anew."""
        self._before = frozenset(self._rows.known) or self._before
        self._missing_before |= self._missing
        self._rows, self._missing = MissingRows(), set()
        self._nodes, self._moved_at = {}, -math.inf

    def step(self, view: JobView, step: Step) -> Mapping[Key, Suspicion]:
        """Return the ranks that are missing; one that reports late is not."""
        present, at = step.present | view.late, step.closed_at
        if not self._rows.steps:
            below = view.world_size or max(present, default=-1) + 1
            again = self._before if view.world_size else self._missing_before
            self._rows.expect([rank for rank in again if rank < below], at)
        if self._missing_before:
            self._missing_before -= present
        if view.core is not self._core:
            self._note_moves(view, at)
        gone, back = self._rows.update(present, at)
        left = {rank for rank in gone if self._rows.last_seen(rank) <= self._moved_at}
        self._rows.forget(left)
        open_ = view.standing(MISSING)
        believed = self._is_believed(view, open_)
        self._missing = (self._missing | (set(gone) - left if believed else set())) - set(back)
        if not self._missing:
            return {}
        on_reporting_nodes = self._on_reporting_nodes(view, step.present)
        lost = {
            rank for rank in self._rows.lost(at, on_reporting_nodes) if believed and rank in self._missing
        }
        standing: dict[Key, Suspicion] = {}
        for rank in sorted(self._missing):
            held = open_.get((MISSING, rank))
            if held is None or (rank in lost and not held.overwhelming):
                held = (
                    self._lost(view, rank, at, node_reports=rank in on_reporting_nodes)
                    if rank in lost
                    else self._gone(view, rank, at)
                )
            standing[MISSING, rank] = held
        return standing

    def _note_moves(self, view: JobView, at: float) -> None:
        """Note whether ranks have moved: the core is a new one wherever their places have changed."""
        nodes = {rank: view.identities[rank].node for rank in view.roster}
        if any(self._nodes.get(rank, node) != node for rank, node in nodes.items()):
            self._moved_at = at
        self._core, self._nodes = view.core, nodes

    def _is_believed(self, view: JobView, open_: Mapping[Key, Suspicion]) -> bool:
        """Return whether the ranks that are missing, beside those that were lost before, are few or those of
        one machine: else it is the telemetry."""
        rows = self._rows
        ranks = [r for r in rows.absent if (MISSING, r) not in open_ or not open_[MISSING, r].overwhelming]
        if not rows.too_many(ranks):
            return True
        return not rows.too_many(ranks, of_one_machine=True) and view.are_on_one_machine(ranks)

    def _on_reporting_nodes(self, view: JobView, present: frozenset[int]) -> frozenset[int]:
        """Return the missing ranks of whose nodes other ranks are ``present``."""
        nodes = {view.identities[rank].node for rank in present} - {UNKNOWN_NODE}
        return frozenset(rank for rank in self._missing if view.identities[rank].node in nodes)

    def _most_are_missing(self, view: JobView, rank: int) -> bool:
        """Return whether most ranks of the node of ``rank`` are missing."""
        node = view.node(rank)
        missing = sum(view.node(r) == node for r in self._missing)
        return missing >= _MOST_OF_NODE * view.ranks_on_node(rank)

    def _gone(self, view: JobView, rank: int, at: float) -> Suspicion:
        since = self._rows.last_seen(rank)
        found = dated(
            view, view.subject(rank), "hang.rank_missing", catalogue_id="rank_missing", since=since, at=at
        )
        return msgspec.structs.replace(
            found,
            note="no step rows of this rank while the others advance",
            # From the first report on: it is what the finding stage knows the machine by.
            ranks_likely_on_node=view.ranks_likely_on_node(rank),
        )

    def _lost(self, view: JobView, rank: int, at: float, *, node_reports: bool) -> Suspicion:
        gone = self._gone(view, rank, at)
        age = Evidence(
            metric="rank.step_age_seconds",
            unit="s",
            detector=PROGRESS,
            value=round(at - gone.onset, 3),
            note=_beside(view, rank, node_reports=node_reports),
        )
        return msgspec.structs.replace(
            gone,
            log_likelihood_ratio=WEIGHT_SLOW,
            overwhelming=True,
            evidence=(age,),
            # Without them its telemetry may be lost rather than the rank.
            severity=None if node_reports else "warning",
            ranks_on_node=view.ranks_on_node(rank)
            if not node_reports or self._most_are_missing(view, rank)
            else 0,
        )


def _beside(view: JobView, rank: int, *, node_reports: bool) -> str:
    """Return what is known of the other ranks of the node of ``rank``."""
    if view.node(rank) is None:
        return "rows name no node"
    return "other ranks of its node report" if node_reports else "no rank of its node reports"
