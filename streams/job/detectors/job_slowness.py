"""Slowness of a job as a whole: a stage or place of the layers with more work, uneven work, shared waits."""

from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt

from detectors.job.job_wide import JobSlowness, Slowness, SlowStage
from detectors.job.waits.shared_wait import SharedWait
from detectors.peers.places.roles import is_regular
from slowrank.telemetry import Evidence, Suspicion
from slowrank.telemetry.records import Suspect
from streams.job.aspect import Aspect, Key
from streams.job.core import shows_stages
from streams.job.detector import OfCore
from streams.job.rows.step_aligner import Step
from streams.job.suspicions import STEPS, WEIGHT_SLOW, about_job
from streams.job.view import JobView, spans

_ASPECTS = {
    "stage": Aspect("stage", cost="even"),
    "context": Aspect("context", cost="even"),
    "position": Aspect("position", cost="past"),
    "machines": Aspect("machines", cost="even"),
    "workload": Aspect("workload", cost="even"),
    "wandering": Aspect("wandering", cost="even"),
    "input": Aspect("input", cost="past"),
    "unmeasured": Aspect("unmeasured", cost="past"),
    "between": Aspect("between", cost="between"),
}

# Of each wait that all ranks share: the hypothesis, the metric that shows it, what they do, of what, and what
# else is known.
_WAITS: dict[Slowness, tuple[str, str, str, str, str]] = {
    "input": ("data", "data_seconds", "each rank waits for its data", "of a step", "compute is as before"),
    "unmeasured": (
        "unmeasured",
        "step_seconds.rest",
        "no rank computes, loads or transfers",
        "of a step",
        "compute is as before",
    ),
    "between": (
        "between_steps",
        "step_seconds.between",
        "no rank is in a step",
        "between two steps",
        "loading of data, checkpoints or logging outside the timed step",
    ),
}


_HYPOTHESES: dict[Slowness, str] = {
    "stage": "imbalance.stage",
    # Context parallelism cuts sequences, of which under a causal mask the later parts are more work.
    "context": "imbalance.context",
    "position": "imbalance.position",
    "machines": "imbalance.slowed_machine",
}

# Log-odds; chosen: uneven stages are more common than machines that were slow from the first step on, and
# where rows tell no coordinates the two look alike.
_WEIGHT_MACHINE = WEIGHT_SLOW - 1.0

# Most nodes that are named, and how likely each is at fault. Chosen: as many as are evicted together; they
# may as well be a class, of another model or under a power limit.
_MOST_NAMED, _HALF = 8, 0.5

Ints = npt.NDArray[np.intp]


class JobSlownessDetector(OfCore):
    """Slowness that no rank causes, from when it shows until it has been gone for several looks."""

    aspects = tuple(_ASPECTS.values())

    def step(self, view: JobView, step: Step) -> Mapping[Key, Suspicion]:
        """Return what is slow now, and what was and is not known to have gone."""
        job_wide, at = view.result.job_wide, step.closed_at
        now: dict[Key, Suspicion] = {}
        for found in job_wide.present:
            number = -1 if found.stage is None else found.stage.group
            now[_ASPECTS[found.kind], number] = _suspicion(view, found, at)
        # Another slow stage takes the place of the one before.
        over = {_ASPECTS[kind] for kind in job_wide.gone} | {aspect for aspect, _ in now}
        kept = {key: last for key, last in view.standing(*self.aspects).items() if key[0] not in over}
        return now | kept


def _suspicion(view: JobView, found: JobSlowness, at: float) -> Suspicion:
    if found.stage is not None:
        return _slow_stage(view, found, found.stage, at)
    if found.wait is not None:
        return _shared_wait(view, found, found.wait, at)
    return _uneven_work(view, found, at)


def _slow_stage(view: JobView, found: JobSlowness, stage: SlowStage, at: float) -> Suspicion:
    """Build a stage, position or other group with more work than the others: a finding about the job."""
    role = view.role(stage.members)
    coords = {name: value for name, value in role.items() if isinstance(value, int)}
    ranks = frozenset(view.roster[i] for i in stage.members)
    where = view.role_name(stage.members) or f"ranks {spans(ranks)}"
    hypotheses, suspects = {_HYPOTHESES[found.kind]: WEIGHT_SLOW}, tuple[Suspect, ...]()
    machines = {} if role and found.kind != "machines" else _filled_by(view, ranks)
    if machines:
        names = ", ".join(sorted(machines)[:_MOST_NAMED])
        names += f" and {len(machines) - _MOST_NAMED} more" if len(machines) > _MOST_NAMED else ""
        if found.kind != "machines" and _may_be_stage(view, stage.members):
            where += f" (all those of {names})"
            hypotheses["imbalance.machine"] = _WEIGHT_MACHINE
        else:
            where = f"nodes {names}"
            hypotheses = hypotheses if found.kind == "machines" else {"imbalance.machine": WEIGHT_SLOW}
            first = (min(machines[name]) for name in sorted(machines)[:_MOST_NAMED])
            suspects = tuple(Suspect(subject=view.machine(rank), probability=_HALF) for rank in first)
    suspicion = about_job(
        view,
        at,
        catalogue_id="stage",
        subject=view.job(coords or None),
        hypotheses=hypotheses,
        slowdown=found.slowdown,
        since=(found.onset_lo, found.onset),
        ratio=stage.ratio,
        evidence=(
            Evidence(metric="compute_seconds", unit="s", detector=STEPS, value=stage.seconds, note=where),
        ),
        note=f"{where}: {stage.ratio:.2f}x the mean of the other groups; its ranks agree",
    )
    return msgspec.structs.replace(suspicion, suspects=suspects)


def _filled_by(view: JobView, ranks: frozenset[int]) -> dict[str, frozenset[int]]:
    """Return the nodes whose ranks are ``ranks``; none where these are no whole nodes."""
    machines = {node: own for node, own in view.machines().items() if own <= ranks}
    return machines if sum(map(len, machines.values())) == len(ranks) else {}


def _may_be_stage(view: JobView, members: Ints) -> bool:
    """Return whether some ranks (places), which nothing is known to distinguish, stand as a stage does."""
    if shows_stages(view.roster, view.identities):
        return False
    return is_regular(np.isin(np.arange(len(view.roster)), members))


def _uneven_work(view: JobView, found: JobSlowness, at: float) -> Suspicion:
    """Build work that differs between ranks by chance, or makes one rank after the other slow."""
    if found.kind == "wandering":
        metric, unit, value = "compute_seconds.visited", "ranks", float(found.visited)
        note = f"{found.visited} ranks were slow for some steps each, one after the other"
    else:
        metric, unit, value = "compute_seconds.dispersion", "1", round(found.dispersion, 4)
        note = "compute differs between ranks from step to step and the slowest rank changes"
    return about_job(
        view,
        at,
        catalogue_id="workload",
        subject=view.job(),
        hypotheses={"imbalance.workload": WEIGHT_SLOW},
        slowdown=found.slowdown,
        since=(found.onset_lo, found.onset),
        ratio=found.slowdown,
        evidence=(Evidence(metric=metric, unit=unit, detector=STEPS, value=value),),
        note=note,
    )


def _shared_wait(view: JobView, found: JobSlowness, wait: SharedWait, at: float) -> Suspicion:
    """Build a wait of all ranks that has become longer: for their data, between their steps, or for something
    unmeasured."""
    hypothesis, metric, what, of, known = _WAITS[found.kind]
    return about_job(
        view,
        at,
        catalogue_id="shared_wait",
        subject=view.job(),
        hypotheses={hypothesis: WEIGHT_SLOW},
        slowdown=found.slowdown,
        since=(found.onset_lo, found.onset),
        ratio=found.slowdown,
        evidence=(
            Evidence(
                metric=metric,
                unit="s",
                detector=STEPS,
                value=round(wait.seconds, 6),
                note="the shortest of all ranks: no rank makes the others wait so long",
            ),
        ),
        note=f"{what}{' in bursts,' if wait.bursts else ''} for {wait.seconds:.3g} s {of}, "
        f"{wait.usual:.3g} s before; {known}",
    )
