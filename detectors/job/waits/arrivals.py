"""Which ranks a job that stands still waits for, from what ranks report of the step they have not ended."""

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass

# Phases in which a rank has arrived: it waits in a collective, or takes part in one.
WAITING = frozenset(("wait", "comm"))

# Phase of a rank that others may wait for by design.
_EXCUSED = "checkpoint"

# Share of the ranks, more of which must wait before any other is named (chosen: a majority).
_LEAST_WAITING = 0.5


@dataclass(frozen=True, slots=True)
class Awaited:
    """The ranks that have not arrived, ascending: those that report other work, those that report nothing."""

    elsewhere: tuple[int, ...] = ()
    silent: tuple[int, ...] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        """All of them, ascending."""
        return tuple(sorted((*self.elsewhere, *self.silent)))


def awaited(phases: Mapping[int, str], nodes: Mapping[int, Hashable], ranks: Collection[int]) -> Awaited:
    """Return the ranks that the others wait for.

    ``phases`` is the phase of each rank that reported its open step ("": outside any), ``nodes`` the node of
    each rank. More than half of ``ranks`` must wait, and none write a checkpoint. A rank that reports nothing
    has stopped or died where other ranks of its node report. Where none of a node does, its telemetry may be
    lost instead: then it counts only if no other rank is left to blame.
    """
    waiting = [rank for rank in ranks if phases.get(rank) in WAITING]
    if len(waiting) <= _LEAST_WAITING * len(ranks) or _EXCUSED in phases.values():
        return Awaited()
    elsewhere = tuple(sorted(r for r in ranks if r in phases and phases[r] not in WAITING))
    mute = [rank for rank in ranks if rank not in phases]
    reporting = {nodes[rank] for rank in phases if rank in nodes}
    on_reporting_nodes = tuple(sorted(rank for rank in mute if nodes[rank] in reporting))
    if elsewhere or on_reporting_nodes:
        return Awaited(elsewhere, on_reporting_nodes)
    return Awaited(silent=tuple(sorted(mute)))
