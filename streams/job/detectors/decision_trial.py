"""The second decision core on trial: it sees the same steps as the first, and finds in shadow."""

from collections.abc import Mapping
from dataclasses import replace
from typing import get_args

import msgspec
import numpy as np

from detectors.decision.core import HypothesisCore
from detectors.decision.families import Layout
from detectors.straggler.core import Timing
from slowrank.telemetry import Suspicion
from streams.job.aspect import Aspect, Key
from streams.job.config import JobStageConfig
from streams.job.core import nodes_of, tensor_groups_of
from streams.job.detector import OfCore
from streams.job.detectors.slow_ranks import SlowRanks
from streams.job.step_aligner import Step
from streams.job.step_rows import COORDS, Identity
from streams.job.suspicions import STEPS, TRIAL
from streams.job.view import JobView

_OF_TIMING: dict[Timing, Aspect] = {
    timing: Aspect(f"{TRIAL}.{timing}", ends_with="rank", outlast_job=True) for timing in get_args(Timing)
}


class DecisionTrial(OfCore):
    """Feeds the steps of a job to a ``HypothesisCore`` where settings switch it on.

    Its suspicions are those that ``SlowRanks`` would build of its results, marked as in shadow and under a
    source id of their own. A changed set of ranks begins a new core, as for the first one.
    """

    def __init__(self, config: JobStageConfig) -> None:
        super().__init__(config)
        self._on = config.decision
        self._slow = SlowRanks(config, of_timing=_OF_TIMING)
        self._core: HypothesisCore | None = None
        self._roster: tuple[int, ...] = ()
        self._places: tuple[Identity, ...] = ()

    @property
    def aspects(self) -> tuple[Aspect, ...]:
        """What its suspicions are about."""
        return self._slow.aspects

    def step(self, view: JobView, step: Step) -> Mapping[Key, Suspicion]:
        """Return the ranks that the second core holds slow."""
        if not self._on:
            return {}
        places = tuple(view.identities[rank] for rank in view.roster)
        if self._core is None or places != self._places:
            self._core = self._made(view, places)
        result = self._core.update(step.times(view.roster))
        standing = self._slow.step(replace(view, core=self._core, result=result), step)
        return {key: s if s.shadow else _on_trial(s) for key, s in standing.items()}

    def _made(self, view: JobView, places: tuple[Identity, ...]) -> HypothesisCore:
        core = HypothesisCore(
            layout_of(view.roster, view.identities),
            tensor_groups=tensor_groups_of(view.roster, view.identities),
        )
        place = {rank: i for i, rank in enumerate(view.roster)}
        if self._core is not None:
            held = [(self._roster[slow.rank], slow) for slow in self._core.held()]
            core.resume(replace(slow, rank=place[rank]) for rank, slow in held if rank in place)
        self._roster, self._places = view.roster, places
        return core


def layout_of(roster: tuple[int, ...], identities: Mapping[int, Identity]) -> Layout:
    """Return where the ranks of ``roster`` stand, by the coordinates that every rank reports."""
    places = [dict(identities[rank].coords) for rank in roster]
    coords = {
        name: np.array([at[name] for at in places], dtype=np.intp)
        for name in COORDS
        if all(name in at for at in places)
    }
    models = np.unique([identities[rank].model for rank in roster], return_inverse=True)[1]
    return Layout(len(roster), nodes_of(roster, identities), coords, models.reshape(-1).astype(np.intp))


def _on_trial(s: Suspicion) -> Suspicion:
    return msgspec.structs.replace(
        s, shadow=True, detector=s.detector.replace(STEPS, TRIAL), catalogue_id=TRIAL
    )
