"""Ranks whose step rows are missing while the others of the job advance."""

import math
from collections.abc import Collection, Set

# Chosen, share of the ranks: more missing at once, and more than one, are a fault of the telemetry and not of
# the ranks, unless they are those of one machine.
_TOO_MANY = 0.2

# The same of one machine (chosen: of two machines, one); then those that report are the exception.
_TOO_MANY_OF_ONE = 0.5

# Chosen: steps and seconds a rank must be missing for at least: an exporter sends once a second, and a record
# may be on its way for some.
_LEAST_RUN, _LEAST_SECONDS = 5, 5.0

# Bounds of the share of rows lost: below, too few are seen to be measured; above, any run is possible.
_LEAST_LOSS, _MOST_LOSS = 0.01, 0.9

# Chosen: probability at a step that a run of misses of any rank is due to usual losses alone.
_BY_CHANCE = 1e-6

# Steps and seconds without a row from which a rank is lost. Chosen: rows that a broken path delays mostly
# come within a minute, and a rank that restarts misses a few steps.
_LOST_STEPS, _LOST_SECONDS = 8, 60.0

# The same where in so many steps since it is missing the rows of other ranks of its node arrived, and so the
# path works. Chosen: several sends of an exporter, and steps enough that late rows of one rank alone do not
# explain it. They are counted because after an outage of a node one rank's rows arrive before another's.
_NODE_REPORTS_STEPS, _NODE_REPORTS_SECONDS = 15, 10.0


class MissingRows:
    """Finds ranks whose rows are missing for longer than the usual losses explain.

    Where a share p of rows is lost independently, a run of ``n`` misses of one of ``R`` ranks has the
    probability R * p^n; a rank is missing after the least n for which that is below 1e-6,
    n = ln(1e-6 / R) / ln(p), and never before five steps and five seconds. p is the share of
    misses, over all steps, of ranks that are not missing yet.

    A missing rank is ``lost`` after max(8 steps, 60 s), or after 10 s and 15 steps in which its node sent the
    rows of other ranks.

    ``absent`` maps each missing rank to the number of the last step it was in (steps are counted from one).
    """

    def __init__(self) -> None:
        self.absent: dict[int, int] = {}
        self._last_seen: dict[int, tuple[int, float]] = {}
        self._node_reported: dict[int, int] = {}
        self._closed = 0
        self._missed = 0
        self._expected = 0

    def update(self, ranks: Set[int], ts: float) -> tuple[list[int], list[int]]:
        """Take who reported the step closed at ``ts``; return the ranks newly missing and those back."""
        self._closed += 1
        back = sorted(r for r in self.absent if r in ranks)
        for rank in back:
            del self.absent[rank]
            self._node_reported.pop(rank, None)
        self._last_seen |= dict.fromkeys(ranks, (self._closed, ts))
        gone = self._last_seen.keys() - ranks if len(self._last_seen) > len(ranks) else set()
        self._missed += len(gone - self.absent.keys())
        self._expected += len(self._last_seen) - len(self.absent)
        new = [r for r in sorted(gone) if r not in self.absent and self._is_missing(r, ts)]
        for rank in new:
            self.absent[rank] = self._last_seen[rank][0]
        return new, back

    def expect(self, ranks: Collection[int], ts: float) -> None:
        """Expect ``ranks`` from the next step on, as if they had been seen at ``ts``: those of an earlier
        attempt, of which some may never arrive in this one."""
        self._last_seen |= {rank: (self._closed, ts) for rank in ranks if rank not in self._last_seen}

    def forget(self, ranks: Collection[int]) -> None:
        """Expect ``ranks`` no more: they have left the job."""
        for rank in ranks:
            del self._last_seen[rank]
            self.absent.pop(rank, None)
            self._node_reported.pop(rank, None)

    def lost(self, ts: float, on_reporting_nodes: Collection[int]) -> list[int]:
        """Return the missing ranks that are lost by the step closed at ``ts``, ascending; once a step.

        ``on_reporting_nodes``: the missing ranks of whose nodes other rows came in this step.
        """
        for rank in on_reporting_nodes:
            self._node_reported[rank] = self._node_reported.get(rank, 0) + 1
        return [rank for rank in sorted(self.absent) if self._is_lost(rank, ts)]

    def too_many(self, ranks: Collection[int], *, of_one_machine: bool = False) -> bool:
        """Return whether so many ``ranks`` missing at once are for the telemetry and not for the ranks."""
        share = _TOO_MANY_OF_ONE if of_one_machine else _TOO_MANY
        return len(ranks) > max(1.0, share * len(self._last_seen))

    def node_reports(self, rank: int) -> bool:
        """Return whether other rows of the node came since the rank is missing, often enough to count."""
        return self._node_reported.get(rank, 0) >= _NODE_REPORTS_STEPS

    @property
    def steps(self) -> int:
        """How many steps were closed."""
        return self._closed

    @property
    def known(self) -> Set[int]:
        """The ranks that were seen or are expected."""
        return self._last_seen.keys()

    def last_seen(self, rank: int) -> float:
        """Event time of the last row of ``rank``."""
        return self._last_seen[rank][1]

    def _is_lost(self, rank: int, ts: float) -> bool:
        closed, seen = self._last_seen[rank]
        if self.node_reports(rank) and ts - seen >= _NODE_REPORTS_SECONDS:
            return True
        return self._closed - closed >= _LOST_STEPS and ts - seen >= _LOST_SECONDS

    def _is_missing(self, rank: int, ts: float) -> bool:
        closed, seen = self._last_seen[rank]
        lost_share = min(max(self._missed / max(self._expected, 1), _LEAST_LOSS), _MOST_LOSS)
        run = max(_LEAST_RUN, math.ceil(math.log(_BY_CHANCE / len(self._last_seen)) / math.log(lost_share)))
        return self._closed - closed >= run and ts - seen > _LEAST_SECONDS
