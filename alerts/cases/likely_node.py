"""A machine whose name no row tells: ranks in a row that are as many as one likely has."""

from collections.abc import Collection

from alerts.cases.case import Case
from slowrank.telemetry import Evidence, Suspicion

# Chosen, of the slowest rank's slowdown: least that each rank of one cause shows, as within a tensor-parallel
# group (``detectors.straggler.mates``).
_ALIKE = 0.5


def likely_ranks(s: Suspicion) -> str | None:
    """Return the ranks that likely share the node of the suspicion's, "8-15"; None where rows name nodes, or
    the ranks of one cannot be distinguished."""
    rank, size = s.subject.rank, s.ranks_likely_on_node
    if s.subject.node or rank is None or not size:
        return None
    first = rank // size * size
    return f"{first}-{first + size - 1}"


def equally_slow(slow: Collection[Case]) -> bool:
    """Return whether all ranks are slow by about the same: only then is it likely one cause.

    Ranks that compute slowly may hold up others of a tensor-parallel group, by less; those that wait for data
    hold up none of their machine, and how long one waits scatters from rank to rank.
    """
    if any(case.rule.each_by_itself for case in slow):
        return True
    ratios = [max((s.slowdown_ratio or 1.0 for s in case.suspicions()), default=1.0) for case in slow]
    return min(ratios) - 1.0 >= _ALIKE * (max(ratios) - 1.0)


def note(ranks: str, members: int) -> Evidence:
    """Return why ranks of no known node are one finding."""
    return Evidence(
        metric="likely_node.ranks",
        unit="1",
        detector="likely_node",
        value=float(members),
        note=f"rows name no node; ranks {ranks} are in a row, and fell behind together: likely they "
        "run on one machine",
    )
