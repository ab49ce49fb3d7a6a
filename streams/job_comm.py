"""Transfers of one job: rounds of its ranks' transfer times to suspicions about slow groups.

A group that transfers slowly is a finding about the job, with its ranks as suspects; a rank is suspected by
itself only where slow groups of two dimensions meet in it, and then needs evidence of another kind.
"""

from collections import deque

import msgspec
import numpy as np

from detectors.robust import nan_median
from detectors.votes import GroupVotes, SlowGroup
from slowrank.telemetry import Suspicion
from slowrank.telemetry.records import Suspect
from streams import job_suspicions as write
from streams.job_view import JobView, Key
from streams.ledger import Ledger
from streams.step_rows import COORDS, SECONDS
from streams.steps import Floats, Step

ROUND_SECONDS = 10.0
ROUND_STEPS = 3
"""Time and steps of a round: medians over both, for transfers scatter far more than computation does."""

SUSPECTS = 8
_COMM, _STEP = SECONDS.index("comm"), SECONDS.index("step")


class Transfers:
    """Rounds of one set of ranks; a round is ten seconds of event time and at least three steps."""

    def __init__(self) -> None:
        self._roster: tuple[int, ...] = ()
        self._votes = GroupVotes({})
        self._steps: list[Floats] = []
        # The beginnings of as many rounds as convict a group: the first of them is told as the onset.
        self._began: deque[float] = deque(maxlen=self._votes.config.needed)

    def step(self, ledger: Ledger[Key], view: JobView, step: Step) -> list[Suspicion]:
        """Take the next whole step; return what it gives rise to."""
        at = step.closed_at
        out = self._fit(ledger, view, at)
        if not self._votes.able or not np.isfinite(step.values[_COMM]).any():
            return out
        if not self._steps:
            self._began.append(at)
        _, values = step.over(view.roster)
        self._steps.append(values[[_COMM, _STEP]])
        if len(self._steps) < ROUND_STEPS or at - self._began[-1] < ROUND_SECONDS:
            return out
        comm, seconds = nan_median(np.stack(self._steps))
        self._steps = []
        return out + self._told(ledger, view, comm, seconds=float(nan_median(seconds)), at=at)

    def _fit(self, ledger: Ledger[Key], view: JobView, at: float) -> list[Suspicion]:
        if self._roster == view.roster:
            return []
        self._roster, self._steps = view.roster, []
        places = [dict(view.identities[r].coords) for r in view.roster]
        self._votes = GroupVotes(
            {name: np.array([p.get(name, -1) for p in places], dtype=np.intp) for name in COORDS}
        )
        return _cleared(ledger, set(), at)

    def _told(
        self, ledger: Ledger[Key], view: JobView, comm: Floats, *, seconds: float, at: float
    ) -> list[Suspicion]:
        ballot = self._votes.round(comm)
        since = self._began[0]
        told: dict[Key, Suspicion] = {}
        for group in ballot.groups:
            # First member and dimension: a number that a group keeps from round to round.
            number = int(group.members[0]) * len(COORDS) + COORDS.index(group.dimension)
            usual = float(nan_median(comm[group.members]))
            said = write.slow_group(view, group, usual, step=seconds, since=since, at=at)
            likeliest = _likeliest(view, group, ballot.probability)
            told["group", number] = msgspec.structs.replace(said, suspects=likeliest)
        suspects = ballot.suspects()
        if len({g.dimension for g in ballot.groups}) > 1 and len(suspects) == 1:
            rank, share = view.roster[int(suspects[0])], float(ballot.probability[suspects[0]])
            told["transfer", rank] = write.slow_transfer(view, rank, share, since=since, at=at)
        out = [s for key, suspicion in told.items() for s in ledger.put(key, suspicion)]
        return out + _cleared(ledger, set(told), at)


def _likeliest(view: JobView, group: SlowGroup, probability: Floats) -> tuple[Suspect, ...]:
    order = group.members[np.argsort(-probability[group.members], kind="stable")][:SUSPECTS].tolist()
    return tuple(
        Suspect(subject=view.subject(view.roster[i]), probability=round(float(probability[i]), 4))
        for i in order
    )


def _cleared(ledger: Ledger[Key], but: set[Key], at: float) -> list[Suspicion]:
    gone = [key for key in ledger if key[0] in ("group", "transfer") and key not in but]
    return [cleared for key in gone for cleared in ledger.clear(key, at)]
