"""Wait, rebalance or evict: the rung of the ladder that the loss so far and the expected one pay for."""

from dataclasses import dataclass

from alerts.finding import Advice, Decision
from alerts.kinds import kind_of
from alerts.report.cost import ActionCosts, rebalance_cost, restart_cost, should_act
from alerts.report.duration import law_of

# Of ``heals_within_10_min``: the mean duration of compute fail-slow (``duration.COMPUTE``).
_HORIZON_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Loss:
    """A job of ``gpus`` loses ``rate`` GPU-hours an hour since ``age`` seconds, and has ``lost`` so many."""

    gpus: int
    rate: float
    lost: float
    age: float


def advice(hypothesis: str, loss: Loss, costs: ActionCosts, *, again: bool = False) -> Advice | None:
    """Weigh what the machine at fault costs its job against getting rid of it; None if it costs nothing.

    A cause that does not heal by itself is not waited for, unless it can be cured without a restart and has
    not come back (``again``).
    """
    if not loss.rate:
        return None
    rule, law = kind_of(hypothesis), law_of(hypothesis, loss.gpus)
    permanent = rule.permanent
    remaining = None if permanent else law.remaining(age=loss.age)
    expected = loss.rate * (remaining or 0.0) / 3600.0
    prices = {"evict": restart_cost(loss.gpus, costs), "rebalance": rebalance_cost(loss.gpus, costs)}
    # The dearest first: of the rungs that are paid for, it is the one to take. Less work does not make
    # transfers any faster.
    rungs: tuple[Decision, ...] = ("evict",) if rule.transfers else ("evict", "rebalance")
    paid = (rung for rung in rungs if should_act(loss.lost, expected, prices[rung]))
    return Advice(
        decision="wait" if rule.cure and not again else "evict" if permanent else next(paid, "wait"),
        gpu_hours_lost=round(loss.lost, 4),
        gpu_hours_to_rebalance=round(prices["rebalance"], 4),
        gpu_hours_to_restart=round(prices["evict"], 4),
        permanent=permanent,
        expected_remaining_seconds=None if remaining is None else round(remaining, 1),
        expected_gpu_hours=None if permanent else round(expected, 4),
        heals_within_10_min=None if permanent else round(law.heals_within(_HORIZON_SECONDS, age=loss.age), 4),
    )


def reason(weighed: Advice) -> str:
    """Return the advice in a sentence a person can check: what was weighed, and what the loss pays for."""
    restart = f"{weighed.gpu_hours_to_restart:.3g} GPU-h"
    if weighed.permanent:
        return f"It does not heal by itself; a restart costs {restart}."
    moving = f"moving work away ({weighed.gpu_hours_to_rebalance:.3g} GPU-h)"
    # Where moving work would have been paid for, it was no choice.
    moves = max(weighed.gpu_hours_lost, weighed.expected_gpu_hours or 0.0) >= weighed.gpu_hours_to_rebalance
    pays: dict[Decision, str] = {
        "wait": f"which does not pay for a restart ({restart}), and less work makes no transfer faster"
        if moves
        else f"which pays neither for {moving} nor for a restart ({restart})",
        "rebalance": f"which pays for {moving} but not for a restart ({restart})",
        "evict": f"which pays for a restart ({restart})",
    }
    return (
        f"When this was weighed {weighed.gpu_hours_lost:.3g} GPU-h were lost and "
        f"{weighed.expected_gpu_hours or 0.0:.3g} more expected, {pays[weighed.decision]}; "
        f"{weighed.heals_within_10_min or 0.0:.0%} heal within 10 min."
    )
