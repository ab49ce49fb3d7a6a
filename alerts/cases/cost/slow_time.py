"""For how long a case has slowed its job, and what that has cost the job, over all of its spells."""

import math
from dataclasses import dataclass, replace
from typing import Self


@dataclass(frozen=True, slots=True)
class SlowTime:
    """Event time in which a job was slowed, since the finding opened or reopened.

    cost = Σ Δt·(r − 1), with r the ratio of the job to its healthy pace at the end of each Δt

    Both sums grow with each report and never fall, so that a severity that follows from them does not go back
    where a ratio is estimated anew. What was not slow between two spells is in neither. ``until``: up to when
    time is counted, so that two sources of one case do not count it twice.

    >>> once = SlowTime().extended(100.0, 112.0, 1.5)
    >>> once.seconds, once.cost
    (12.0, 6.0)
    >>> once.extended(400.0, 412.0, 1.5).cost
    12.0
    """

    seconds: float = 0.0
    cost: float = 0.0
    until: float = -math.inf

    def extended(self, onset: float, ts: float, job_slowdown: float) -> Self:
        """Return it with what a report at ``ts`` adds: since its ``onset``, or the last report if later."""
        added = max(0.0, ts - max(onset, self.until))
        cost = self.cost + added * max(0.0, job_slowdown - 1.0)
        return replace(self, seconds=self.seconds + added, cost=cost, until=max(self.until, ts))

    def passed(self, ts: float) -> Self:
        """Return it for a case that has not slowed its job up to ``ts``."""
        return replace(self, until=max(self.until, ts))

    def anew(self) -> Self:
        """Return it for a finding that opens again after it had ended."""
        return replace(self, seconds=0.0, cost=0.0)

    def longest(self, other: "SlowTime") -> Self:
        """Return the larger of each, of two cases about one machine or group."""
        return replace(
            self,
            seconds=max(self.seconds, other.seconds),
            cost=max(self.cost, other.cost),
            until=max(self.until, other.until),
        )
