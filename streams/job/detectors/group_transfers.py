"""Transfers of one job: rounds of its ranks' transfer times to suspicions about slow groups.

A group that transfers slowly is a finding about the job, with its ranks as suspects; a rank is suspected by
itself only where slow groups of two dimensions meet in it, and then needs evidence of another kind.
"""

from collections import deque
from collections.abc import Mapping

import msgspec
import numpy as np

from detectors.job.group_votes import GroupVotes, SlowTransfers
from detectors.job.imbalance import slowdown
from detectors.robust import nan_median
from slowrank.telemetry import Evidence, Suspicion
from slowrank.telemetry.records import Suspect
from streams.job.aspect import Aspect, Key
from streams.job.config import JobStageConfig
from streams.job.rows.step_aligner import Floats, Step
from streams.job.rows.step_rows import COORDS, SECONDS
from streams.job.suspicions import WEIGHT_SLOW, about_job, dated
from streams.job.view import JobView

GROUP = Aspect("group", cost="even")
TRANSFER = Aspect("transfer", ends_with="rank", outlast_job=True)

# Source id of its suspicions.
VOTES = "group_votes"

# Log-odds, chosen: a rank found by its groups alone needs a second kind of evidence.
_WEIGHT_TRANSFER = 3.0

# Chosen: time and steps of a round, which are medians over both: transfers scatter far more than computation
# does.
ROUND_SECONDS = 10.0
ROUND_STEPS = 3

# Most suspects in a finding. Chosen: the GPUs of one node, which a person looks at together.
SUSPECTS = 8

_COMM, _STEP = SECONDS.index("comm"), SECONDS.index("step")


class GroupTransfers:
    """Rounds of one set of ranks; a round is ten seconds of event time and at least three steps."""

    aspects = (GROUP, TRANSFER)

    def __init__(self, config: JobStageConfig) -> None:
        self._roster: tuple[int, ...] = ()
        self._votes = GroupVotes({})
        self._steps: list[Floats] = []
        # The beginnings of as many rounds as convict a group: the first of them is the onset.
        self._began: deque[float] = deque(maxlen=self._votes.config.needed)

    def restart(self, *, new_run: bool) -> None:
        """Go on with the round: groups are votes of ranks, whatever their steps are numbered."""

    def step(self, view: JobView, step: Step) -> Mapping[Key, Suspicion]:
        """Return the slow groups of the last round, and the rank in which they meet."""
        at = step.closed_at
        standing = view.standing(*self.aspects)
        if self._roster != view.roster:
            self._begin(view)
            standing = {}
        if not self._votes.able or not np.isfinite(step.values[_COMM]).any():
            return standing
        if not self._steps:
            self._began.append(at)
        _, values = step.over(view.roster)
        self._steps.append(values[[_COMM, _STEP]])
        if len(self._steps) < ROUND_STEPS or at - self._began[-1] < ROUND_SECONDS:
            return standing
        comm, seconds = nan_median(np.stack(self._steps))
        self._steps = []
        return self._voted(view, comm, seconds=float(nan_median(seconds)), at=at)

    def _begin(self, view: JobView) -> None:
        self._roster, self._steps = view.roster, []
        self._votes = votes_of(view)

    def _voted(self, view: JobView, comm: Floats, *, seconds: float, at: float) -> dict[Key, Suspicion]:
        votes = self._votes.round(comm)
        since = self._began[0]
        standing: dict[Key, Suspicion] = {}
        for group in votes.groups:
            # First member and dimension: a number that a group keeps from round to round.
            number = int(group.members[0]) * len(COORDS) + COORDS.index(group.dimension)
            usual = float(nan_median(comm[group.members]))
            found = _slow_group(view, group, usual, step=seconds, since=since, at=at)
            likeliest = _likeliest(view, group, votes.probability)
            standing[GROUP, number] = msgspec.structs.replace(found, suspects=likeliest)
        suspects = votes.suspects()
        if len({g.dimension for g in votes.groups}) > 1 and len(suspects) == 1:
            rank, share = view.roster[int(suspects[0])], float(votes.probability[suspects[0]])
            standing[TRANSFER, rank] = _slow_transfer(view, rank, share, since=since, at=at)
        return standing


def votes_of(view: JobView) -> GroupVotes:
    """Return votes of the groups that the ranks' coordinates make."""
    places = [dict(view.identities[r].coords) for r in view.roster]
    return GroupVotes({name: np.array([p.get(name, -1) for p in places], dtype=np.intp) for name in COORDS})


def _slow_group(
    view: JobView, group: SlowTransfers, comm: float, *, step: float, since: float, at: float
) -> Suspicion:
    """Build a group whose transfers take ``comm`` seconds of each ``step``: a finding about the job."""
    ranks = [view.roster[i] for i in group.members.tolist()]
    shared = dict(view.identities[ranks[0]].coords)
    del shared[group.dimension]
    extra = comm * (1.0 - 1.0 / group.ratio)
    compared = Evidence(
        metric="comm_seconds",
        unit="s",
        detector=VOTES,
        value=round(comm, 6),
        note=f"{len(ranks)} ranks that differ in {group.dimension} only, each as likely as the others",
    )
    found = about_job(
        view,
        at,
        catalogue_id="group_votes",
        subject=view.job(shared or None),
        hypotheses={"group": WEIGHT_SLOW},
        slowdown=float(slowdown(step, extra)),
        since=(since, since),
        ratio=group.ratio,
        evidence=(compared,),
        note="a link of one of its ranks; step times do not show which",
    )
    return msgspec.structs.replace(
        found, detector=VOTES, onset_hi=since, ruled_out=("single_rank", "congestion")
    )


def _slow_transfer(view: JobView, rank: int, share: float, *, since: float, at: float) -> Suspicion:
    """Build the one rank in which slow groups of two dimensions meet, with its probability."""
    return msgspec.structs.replace(
        dated(view, view.subject(rank), "link.nic_slow", catalogue_id="group_votes", since=since, at=at),
        detector=VOTES,
        family="timing",
        log_likelihood_ratio=_WEIGHT_TRANSFER,
        note=f"in all slow groups, probability {share:.2f}",
    )


def _likeliest(view: JobView, group: SlowTransfers, probability: Floats) -> tuple[Suspect, ...]:
    order = group.members[np.argsort(-probability[group.members], kind="stable")][:SUSPECTS].tolist()
    return tuple(
        Suspect(subject=view.subject(view.roster[i]), probability=round(float(probability[i]), 4))
        for i in order
    )
