"""Ranks whose steps are missing while the others advance."""

from collections.abc import Mapping

import msgspec

from detectors.job.missing_rows import MissingRows
from slowrank.telemetry import Suspicion
from streams.job.config import JobStageConfig
from streams.job.step_aligner import Step
from streams.job.suspicions import dated
from streams.job.topic import Key, Topic
from streams.job.view import JobView

MISSING = Topic("missing", ends_with="rank")


class MissingRanks:
    """Ranks that are missing, until a row of theirs comes."""

    topics = (MISSING,)

    def __init__(self, config: JobStageConfig) -> None:
        self._rows = MissingRows()
        self._first = True

    def restart(self, *, new_run: bool) -> None:
        """Count the missed steps anew."""
        self._rows = MissingRows()

    def step(self, view: JobView, step: Step) -> Mapping[Key, Suspicion]:
        """Return the ranks that are missing; one that reports late is not."""
        gone, back = self._rows.update(step.present | view.late, step.closed_at)
        # Of a job that was let go and is back, all ranks in the roster report again.
        standing = {} if self._first else view.standing(MISSING)
        self._first = False
        for rank in back:
            standing.pop((MISSING, rank), None)
        return standing | {(MISSING, rank): self._suspicion(view, rank, step.closed_at) for rank in gone}

    def _suspicion(self, view: JobView, rank: int, at: float) -> Suspicion:
        since = self._rows.last_seen(rank)
        found = dated(
            view, view.subject(rank), "hang.rank_missing", catalogue_id="rank_missing", since=since, at=at
        )
        return msgspec.structs.replace(found, note="no step rows of this rank while the others advance")
