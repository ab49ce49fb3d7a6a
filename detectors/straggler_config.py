"""What the straggler detection can be told."""

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

    floor: float = 0.005
    spread: float = 0.006
    warmup_steps: int = 20
    learn: int = 20
    baseline: int = 100
    history: int = 256
    min_effect: float = 0.02
    min_effect_uneven: float = 0.05
    min_effect_asynchronous: float = 0.10
    min_effect_lasting: float = 0.04
