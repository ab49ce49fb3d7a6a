"""Transfers that take longer for the whole job: congestion, or one link that all wait for."""

from collections.abc import Mapping

from detectors.job.waits.slow_network import SlowNetwork
from slowrank.telemetry import Evidence, Suspicion
from streams.job.aspect import Aspect, Key
from streams.job.detector import OfCore
from streams.job.rows.step_aligner import Step
from streams.job.suspicions import STEPS, WEIGHT_SLOW, about_job
from streams.job.view import JobView

# What the network takes for other ranks is learnt anew.
NETWORK = Aspect("network", ends_with="roster", cost="past")

_KEY: Key = (NETWORK, -1)


class SlowNetworkDetector(OfCore):
    """A slow network, from when it shows until it has recovered."""

    aspects = (NETWORK,)

    def step(self, view: JobView, step: Step) -> Mapping[Key, Suspicion]:
        """Return that the network is slow, if so."""
        if view.result.network is not None:
            return {_KEY: _suspicion(view, view.result.network, step.closed_at)}
        if view.result.network_recovered:
            return {}
        # It still holds, and has cost more.
        return {key: view.open.refreshed(key, step.closed_at) for key in view.standing(NETWORK)}


def _suspicion(view: JobView, found: SlowNetwork, at: float) -> Suspicion:
    return about_job(
        view,
        at,
        catalogue_id="congestion",
        subject=view.job(),
        # One slow link of a ring looks like congestion to all of its ranks; the latter is more frequent.
        hypotheses={"congestion": WEIGHT_SLOW, "link.nic_slow": WEIGHT_SLOW - 1.0},
        slowdown=found.job_slowdown,
        since=(found.onset_lo, found.onset),
        ratio=found.ratio,
        evidence=(
            Evidence(
                metric="comm_seconds",
                unit="s",
                detector=STEPS,
                value=round(found.seconds, 6),
                note="the shortest of all ranks: the transfer itself, without waiting",
            ),
        ),
        note=f"collectives take {found.ratio:.2f}x as long for all ranks alike; compute is as before",
    )
