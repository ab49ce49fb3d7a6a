"""Transfers of a job that are long again and again, in single steps: a link that flaps, or congestion."""

from collections.abc import Mapping

from detectors.job.waits.flapping import Flapping
from slowrank.telemetry import Evidence, Suspicion
from slowrank.telemetry.records import LONG_STEPS
from streams.job.aspect import Aspect, Key
from streams.job.detector import OfCore
from streams.job.rows.step_aligner import Step
from streams.job.suspicions import STEPS, WEIGHT_SLOW, about_job
from streams.job.view import JobView

FLAPPING = Aspect("flapping", ends_with="roster", cost="steps")

_KEY: Key = (FLAPPING, -1)

# By the part of a step that shows it: the hypotheses, the metric and what is long. One link of a ring looks
# like congestion to all of its ranks; the latter is more frequent (as in ``slow_network``).
_TRANSFERS = ({"congestion": WEIGHT_SLOW, "link.nic_slow": WEIGHT_SLOW - 1.0}, "comm_seconds", "a transfer")
_REST = ({"unmeasured": WEIGHT_SLOW}, "step_seconds.rest", "what is beside compute")


class FlappingDetector(OfCore):
    """Transfers that are long again and again, until they have not been for long."""

    aspects = (FLAPPING,)

    def step(self, view: JobView, step: Step) -> Mapping[Key, Suspicion]:
        """Return that they are, with new figures when these are due."""
        found = view.result.flapping
        # A rank that does not log may be the one that all wait for.
        if found is None or (found.idling != "transfers" and view.gpus > len(view.roster)):
            return {}
        last = view.standing(FLAPPING).get(_KEY)
        if last is not None and not view.open.is_due(_KEY, step.closed_at):
            return {_KEY: last}
        return {_KEY: _suspicion(view, found, step.closed_at)}


def _suspicion(view: JobView, found: Flapping, at: float) -> Suspicion:
    hypotheses, metric, what = _REST if found.idling == "rest" else _TRANSFERS
    ratio = found.job_slowdown if found.idling == "rest" else found.ratio
    often = f"again and again, {found.count} times in the last {found.steps} steps"
    return about_job(
        view,
        at,
        catalogue_id="congestion",
        subject=view.job(),
        hypotheses=hypotheses,
        slowdown=found.job_slowdown,
        since=(found.onset_lo, found.onset),
        ratio=ratio,
        evidence=(
            Evidence(
                metric=metric,
                unit="s",
                detector=STEPS,
                value=round(found.seconds, 6),
                note=f"{often}, {found.ratio:.1f}x as long: no rank does more meanwhile",
            ),
            Evidence(metric=metric + LONG_STEPS, unit="steps", detector=STEPS, value=float(found.count)),
        ),
        note=f"{what} takes {found.ratio:.1f}x as long {often}; compute is as before",
    )
