"""Which ranks a job that stands still waits for, from the operations that each rank has issued.

The ranks of a group issue the same collectives in the same order, by number. The group stands in the first
collective that has not ended: who has not issued it is waited for, and who has issued another under the same
number has left the order. Of several groups that stand, the cause is with ranks that wait for no other.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

# Collectives whose input has the same size on every rank. Of others, such as an all-to-all, it may differ.
_EQUAL_INPUTS = frozenset(
    ("all_reduce", "broadcast", "reduce", "_all_gather_base", "_reduce_scatter_base", "all_gather", "barrier")
)


@dataclass(frozen=True, slots=True)
class Call:
    """An operation that a rank has issued: ``number`` counts the collectives of its group, or its sends and
    receives, which have a ``peer``."""

    group: str
    number: int
    operation: str
    elements: int
    started: bool
    done: bool
    peer: int | None = None

    @property
    def same(self) -> tuple[str, int]:
        """What all ranks of a collective have in common."""
        return self.operation, self.elements if self.operation in _EQUAL_INPUTS else 0


@dataclass(frozen=True, slots=True)
class Trace:
    """The calls of one rank in order, and the members of its groups."""

    groups: Mapping[str, tuple[int, ...]]
    calls: Sequence[Call]


@dataclass(frozen=True, slots=True)
class Standstill:
    """A collective, or a send or receive, that does not end.

    ``waiting`` are in it. ``absent`` have not issued it; ``silent`` have left no trace; ``astray`` have
    issued another under its number; ``queued`` have issued it and not started, though others have: their GPU
    is at earlier work. ``cause``: those of them who wait for no other rank.
    """

    group: str
    number: int
    operation: str
    elements: int
    members: tuple[int, ...]
    waiting: tuple[int, ...]
    absent: tuple[int, ...] = ()
    silent: tuple[int, ...] = ()
    astray: Mapping[int, Call] = field(default_factory=dict)
    queued: tuple[int, ...] = ()
    cause: tuple[int, ...] = ()

    @property
    def awaited(self) -> frozenset[int]:
        """The ranks that those waiting need."""
        return frozenset((*self.absent, *self.silent, *self.astray, *self.queued))


def standstills(traces: Mapping[int, Trace]) -> list[Standstill]:
    """Return what does not end, those with a cause first.

    >>> done, waits = Call("0", 7, "all_reduce", 64, True, True), Call("0", 8, "all_reduce", 64, True, False)
    >>> stuck = Trace({"0": (0, 1, 2)}, (done, waits))
    >>> [found] = standstills({0: stuck, 1: stuck, 2: Trace({"0": (0, 1, 2)}, (done,))})
    >>> found.number, found.absent, found.cause
    (8, (2,), (2,))
    """
    found = [*_of_groups(traces), *_of_pairs(traces)]
    waits: dict[int, set[int]] = {}
    for one in found:
        for rank in one.waiting:
            waits.setdefault(rank, set()).update(one.awaited - {rank})
    named = [replace(one, cause=_cause(one, waits)) for one in found]
    return sorted(named, key=lambda one: (not one.cause, -len(one.waiting), one.group))


def _cause(one: Standstill, waits: Mapping[int, set[int]]) -> tuple[int, ...]:
    """Return the ranks of a standstill that wait for no other; who is astray waits because of that."""
    shown = [*one.astray, *(rank for rank in (*one.absent, *one.queued) if not waits.get(rank))]
    # A rank without a trace may have died, or only its trace is missing.
    return tuple(sorted(shown or one.silent))


def _of_groups(traces: Mapping[int, Trace]) -> Iterator[Standstill]:
    groups = {(name, members) for trace in traces.values() for name, members in trace.groups.items()}
    for name, members in sorted(groups):
        calls = {
            rank: {
                call.number: call for call in traces[rank].calls if call.group == name and call.peer is None
            }
            for rank in members
            if rank in traces and traces[rank].groups.get(name) == members
        }
        open_ = [n for of_rank in calls.values() for n, call in of_rank.items() if not call.done]
        if open_:
            yield _standstill(name, members, calls, min(open_))


def _standstill(
    name: str, members: tuple[int, ...], calls: Mapping[int, Mapping[int, Call]], number: int
) -> Standstill:
    issued = {rank: of_rank[number] for rank, of_rank in calls.items() if number in of_rank}
    kinds = Counter(call.same for call in issued.values())
    (most, count), *others = kinds.most_common()
    # Of two that are equally frequent neither is the right one.
    clear = not others or others[0][1] < count
    astray = {rank: call for rank, call in issued.items() if call.same != most or not clear}
    usual = next(call for call in issued.values() if call.same == most)
    waiting = tuple(sorted(rank for rank, call in issued.items() if not call.done and rank not in astray))
    queued = [rank for rank in waiting if not issued[rank].started]
    # Where kernels are not timed no start is recorded, so that none has started.
    few = len(queued) * 2 < len(waiting)
    return Standstill(
        group=name,
        number=number,
        operation=usual.operation,
        elements=usual.elements,
        members=members,
        waiting=tuple(rank for rank in waiting if not (few and rank in queued)),
        absent=tuple(sorted(rank for rank in calls if max(calls[rank], default=-1) < number)),
        silent=tuple(sorted(set(members) - calls.keys())),
        astray=astray,
        queued=tuple(queued) if few else (),
    )


def _of_pairs(traces: Mapping[int, Trace]) -> Iterator[Standstill]:
    """Yield the first send or receive of each rank that does not end."""
    first: dict[int, Call] = {}
    for rank, trace in traces.items():
        call = next((call for call in trace.calls if call.peer is not None and not call.done), None)
        if call is not None:
            first[rank] = call
    for rank, call in sorted(first.items()):
        peer = -1 if call.peer is None else call.peer
        other = traces.get(peer)
        met = other is not None and _meets(other.calls, rank, call)
        yield Standstill(
            group=call.group,
            number=call.number,
            operation=call.operation,
            elements=call.elements,
            members=tuple(sorted((rank, peer))),
            waiting=(rank,),
            absent=(peer,) if other is not None and not met else (),
            silent=(peer,) if other is None else (),
        )


def _meets(calls: Iterable[Call], rank: int, call: Call) -> bool:
    """Return whether a peer is in the other half of a send or receive with ``rank``."""
    return any(
        c.peer == rank and not c.done and c.operation != call.operation and c.group == call.group
        for c in calls
    )
