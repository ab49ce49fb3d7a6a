"""Settings of the straggler detection."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerConfig:
    """Times are shares: 0.02 is 2 %.

    ``floor``: smallest credible noise of a ratio. ``spread``: healthy lasting spread between ranks of a role.
    ``warmup_steps``: step numbers below it are not judged when the job is seen from its start. ``learn``:
    steps before a job's kind, roles and baselines count as known. ``baseline``: steps a baseline looks back.
    ``min_effect``: slowdowns below it are not reported; ``min_effect_uneven`` where ranks' work differs,
    ``min_effect_asynchronous`` where they share no wall clock besides, ``min_effect_lasting`` for ranks that
    never were faster (healthy ones differ a little for ever).
    """

    # Recorded ranks of one stage differ by 0.5 % in a step (sd), and by 0.1 to 0.6 % for good.
    floor: float = 0.005
    spread: float = 0.006
    # The first 10 to 20 steps of recorded jobs are slow.
    warmup_steps: int = 20
    learn: int = 20
    baseline: int = 100
    # No less than the 200 steps that the fit of the work looks back on.
    history: int = 256
    min_effect: float = 0.02
    min_effect_uneven: float = 0.05
    # Set on a recorded job of that kind (docs/detection-quality.md, Alibaba job_1).
    min_effect_asynchronous: float = 0.10
    min_effect_lasting: float = 0.04
