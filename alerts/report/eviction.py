"""Which nodes to evict together where no single machine can be named: one of them is bad.

ByteRobust (SOSP '25) evicts all machines of a suspected parallel group, for a restart costs more than a few
healthy machines that wait for their test. So the suspects of a finding become a set of nodes here, with the
probability that it holds the culprit.
"""

from collections.abc import Sequence

from alerts.finding import Eviction
from alerts.report.cost import ActionCosts, restart_cost
from slowrank.telemetry.records import Suspect

# The set grows until it holds the culprit so surely. Chosen: just below what the suspects of a hang hold
# together (0.9), so that a node more is worth it only where it is a suspect like the others.
ENOUGH = 0.85
# Below, evicting would more likely miss the culprit than remove it (chosen).
LEAST = 0.5
# Chosen: the nodes of one parallel group; more spares are rarely at hand.
MOST_NODES = 8


def eviction(suspects: Sequence[Suspect], *, gpus: int, costs: ActionCosts) -> Eviction | None:
    """Return the fewest nodes that hold the culprit with ``ENOUGH``, or as surely as all suspects together.

    None where a node of a suspect is unknown, or ``MOST_NODES`` hold it with less than ``LEAST``.
    ``gpus`` are those of the job, all of which a restart costs.
    """
    held: dict[str, float] = {}
    for suspect in suspects:
        if suspect.subject.node is None:
            return None
        held[suspect.subject.node] = held.get(suspect.subject.node, 0.0) + suspect.probability
    nodes: list[str] = []
    probability = 0.0
    for node in sorted(held, key=lambda name: (-held[name], name))[:MOST_NODES]:
        if probability >= ENOUGH:
            break
        nodes.append(node)
        probability += held[node]
    if probability < LEAST:
        return None
    return Eviction(
        nodes=tuple(nodes),
        probability=round(min(probability, 1.0), 4),
        gpu_hours_to_restart=round(restart_cost(gpus, costs), 4),
    )


def in_words(chosen: Eviction) -> str:
    """Return the set as advice that a person can check."""
    price = f"a restart costs {chosen.gpu_hours_to_restart:.3g} GPU-h"
    if len(chosen.nodes) == 1:
        sure = f"it is bad with probability {chosen.probability:.2f}"
        return f"If that shows nothing, evict {chosen.nodes[0]}: {sure}; {price}."
    together = f"evict these {len(chosen.nodes)} together: {', '.join(chosen.nodes)}"
    healthy = len(chosen.nodes) - 1
    return (
        f"If that shows nothing, {together}. One is bad with probability {chosen.probability:.2f}; {price}, "
        f"and {healthy} healthy {'node waits' if healthy == 1 else 'nodes wait'} for a test."
    )
