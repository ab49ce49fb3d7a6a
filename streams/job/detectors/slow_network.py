"""Transfers that take longer for the whole job: congestion, or one link that all wait for; or for a part of
its ranks, which the others wait for."""

from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from detectors.job.waits.slow_network import SlowNetwork
from slowrank.telemetry import Evidence, Subject, Suspicion
from slowrank.telemetry.records import Suspect
from streams.job.aspect import Aspect, Key
from streams.job.detector import OfCore
from streams.job.detectors.group_transfers import SUSPECTS, votes_of
from streams.job.rows.step_aligner import Step
from streams.job.suspicions import STEPS, WEIGHT_SLOW, about_job
from streams.job.view import JobView, spans

# What the network takes for other ranks is learnt anew.
NETWORK = Aspect("network", ends_with="roster", cost="past")

# Of a part of the ranks. Transfers that no row reports are one of several things that may take longer.
_TRANSFERS = {"group": WEIGHT_SLOW}
_UNREPORTED = {"unmeasured.part": WEIGHT_SLOW, "group": WEIGHT_SLOW - 1.0}

_ALL: Key = (NETWORK, -1)
_RINGS: Key = (NETWORK, 0)


class SlowNetworkDetector(OfCore):
    """A slow network, or slow rings, from when it shows until it has recovered."""

    aspects = (NETWORK,)

    def step(self, view: JobView, step: Step) -> Mapping[Key, Suspicion]:
        """Return what of the network is slow."""
        result, at = view.result, step.closed_at
        # What still holds has cost more.
        standing = {key: view.open.refreshed(key, at) for key in view.standing(NETWORK)}
        for key, found, recovered in (
            (_ALL, result.network, result.network_recovered),
            (_RINGS, result.rings, result.rings_recovered),
        ):
            # A single group is found by its votes, with the probability of each rank.
            if found is not None and not _is_one_group(view, found):
                standing[key] = _suspicion(view, found, at)
            elif recovered:
                standing.pop(key, None)
        return standing


def _is_one_group(view: JobView, found: SlowNetwork) -> bool:
    return found.members is not None and votes_of(view).holds(found.members)


def _suspicion(view: JobView, found: SlowNetwork, at: float) -> Suspicion:
    if found.members is not None:
        return _of_rings(view, found, found.members, at)
    return _slow_transfers(
        view,
        found,
        at,
        subject=view.job(),
        # One slow link of a ring looks like congestion to all of its ranks; the latter is more frequent.
        hypotheses={"congestion": WEIGHT_SLOW, "link.nic_slow": WEIGHT_SLOW - 1.0},
        whose="for all ranks alike",
        shown="the shortest of all ranks: the transfer itself, without waiting",
    )


def _of_rings(view: JobView, found: SlowNetwork, members: npt.NDArray[np.intp], at: float) -> Suspicion:
    ranks = [view.roster[i] for i in members.tolist()]
    role = view.role(members)
    coords = {name: value for name, value in role.items() if isinstance(value, int)}
    where = f"{view.role_name(members)}, " if role else ""
    suspicion = _slow_transfers(
        view,
        found,
        at,
        subject=view.job(coords or None),
        hypotheses=_TRANSFERS if found.reported else _UNREPORTED,
        whose=f"on {len(ranks)} ranks",
        shown=f"{where}ranks {spans(ranks)}: the others wait for them",
    )
    share = 1.0 / len(ranks)
    likely = tuple(Suspect(subject=view.subject(r), probability=round(share, 4)) for r in ranks[:SUSPECTS])
    return msgspec.structs.replace(suspicion, ruled_out=("single_rank", "congestion"), suspects=likely)


def _slow_transfers(
    view: JobView,
    found: SlowNetwork,
    at: float,
    *,
    subject: Subject,
    hypotheses: dict[str, float],
    whose: str,
    shown: str,
) -> Suspicion:
    what = "collectives take" if found.reported else "what ranks do outside of what they report takes"
    return about_job(
        view,
        at,
        catalogue_id="congestion",
        subject=subject,
        hypotheses=hypotheses,
        slowdown=found.job_slowdown,
        since=(found.onset_lo, found.onset),
        ratio=found.ratio,
        evidence=(
            Evidence(
                metric="comm_seconds" if found.reported else "step_seconds.rest",
                unit="s",
                detector=STEPS,
                value=round(found.seconds, 6),
                note=shown,
            ),
        ),
        note=f"{what} {found.ratio:.2f}x as long {whose}; compute is as before",
    )
