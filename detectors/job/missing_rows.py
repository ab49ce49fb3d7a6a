"""Ranks whose step rows are missing while the others of the job advance."""

import math
from collections.abc import Set

_TOO_MANY = 0.2
"""Chosen, share of the ranks: so many missing at once are a fault of the telemetry and not of the ranks."""

_LEAST_RUN, _LEAST_SECONDS = 5, 5.0
"""Chosen: steps and seconds a rank must be missing for at least: an exporter sends once a second, and a
record may be on its way for some."""

_LEAST_LOSS, _MOST_LOSS = 0.01, 0.9
"""Bounds of the share of rows lost: below, too few are seen to be measured; above, any run is possible."""

_BY_CHANCE = 1e-6
"""Chosen: probability at a step that a run of misses of any rank is due to usual losses alone."""


class MissingRows:
    """Finds ranks whose rows are missing for longer than the usual losses explain.

    Where a share ``loss`` of rows is lost independently, a run of ``n`` misses of one of ``R`` ranks has the
    probability R * loss^n; a rank is missing after the least n for which that is below 1e-6,
    n = ln(1e-6 / R) / ln(loss), and never before five steps and five seconds. The loss is the share of
    misses, over all steps, of ranks that are not missing yet.

    ``absent`` maps each missing rank to the number of the last step it was in (steps are counted from one).
    """

    def __init__(self) -> None:
        self.absent: dict[int, int] = {}
        self._last_seen: dict[int, tuple[int, float]] = {}
        self._closed = 0
        self._missed = 0
        self._expected = 0

    def update(self, ranks: Set[int], ts: float) -> tuple[list[int], list[int]]:
        """Take who reported the step closed at ``ts``; return the ranks newly missing and those back."""
        self._closed += 1
        back = sorted(r for r in self.absent if r in ranks)
        for rank in back:
            del self.absent[rank]
        self._last_seen |= dict.fromkeys(ranks, (self._closed, ts))
        gone = self._last_seen.keys() - ranks if len(self._last_seen) > len(ranks) else set()
        self._missed += len(gone - self.absent.keys())
        self._expected += len(self._last_seen) - len(self.absent)
        new = [r for r in sorted(gone) if r not in self.absent and self._is_missing(r, ts)]
        for rank in new:
            self.absent[rank] = self._last_seen[rank][0]
        if len(self.absent) > _TOO_MANY * len(self._last_seen):
            return [], back
        return new, back

    def last_seen(self, rank: int) -> float:
        """Event time of the last row of ``rank``."""
        return self._last_seen[rank][1]

    def _is_missing(self, rank: int, ts: float) -> bool:
        closed, seen = self._last_seen[rank]
        loss = min(max(self._missed / max(self._expected, 1), _LEAST_LOSS), _MOST_LOSS)
        run = max(_LEAST_RUN, math.ceil(math.log(_BY_CHANCE / len(self._last_seen)) / math.log(loss)))
        return self._closed - closed >= run and ts - seen > _LEAST_SECONDS
