"""Where the nodes of a cluster stand, as they are announced.

Distinguishing a failed rack from a coincidence needs the nodes of the rack that are well, and a broken
telemetry path the number of nodes.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from slowrank.telemetry import NodeAnnounced, Subject

# A node not announced for so long belongs to no rack or switch any more (chosen: a dozen announcements).
DEPARTED_SECONDS = 3600.0
# A node announced so much longer ago than others has left (chosen: three announcements: it has sent nothing
# for ten minutes at least).
EXPECTED_SECONDS = 900.0

_INDEX = re.compile(r"(\d+)\D*$")


@dataclass(frozen=True, slots=True)
class Where:
    """The domains of one node, how many network ports it has, and the boards of its GPUs; ``announced_at`` is
    event time."""

    rack: str | None
    switch: str | None
    ports: int
    announced_at: float
    boards: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Layout:
    """The nodes of a cluster that were announced, ``known``; ``nodes`` are those with a rack or switch."""

    known: Mapping[str, Where] = field(default_factory=dict)

    def update(self, announced: Sequence[NodeAnnounced]) -> "Layout":
        """Return the layout after announcements of one event time."""
        if not announced:
            return self
        new = {a.node: Where(a.rack, a.switch, a.ports, a.ts, a.boards) for a in announced}
        known = {**self.known, **new}
        # Departed nodes are dropped only when a node is new: nearly all announcements are repetitions.
        if not new.keys() <= self.known.keys():
            oldest = announced[0].ts - DEPARTED_SECONDS
            known = {n: w for n, w in known.items() if w.announced_at >= oldest}
        return Layout(known)

    @cached_property
    def expected(self) -> int:
        """How many nodes report, or did until a few minutes before the last announcement."""
        latest = max((w.announced_at for w in self.known.values()), default=0.0)
        return sum(latest - w.announced_at <= EXPECTED_SECONDS for w in self.known.values())

    @cached_property
    def nodes(self) -> Mapping[str, Where]:
        """The nodes with a rack or a switch."""
        return {n: w for n, w in self.known.items() if (w.rack, w.switch) != (None, None)}

    @cached_property
    def racks(self) -> Counter[str]:
        """Nodes per rack."""
        return Counter(w.rack for w in self.nodes.values() if w.rack is not None)

    @cached_property
    def switches(self) -> Counter[str]:
        """Nodes per switch."""
        return Counter(w.switch for w in self.nodes.values() if w.switch is not None)

    @cached_property
    def ports(self) -> Counter[tuple[str, str]]:
        """Network ports per (``rack`` or ``switch``, its name)."""
        found: Counter[tuple[str, str]] = Counter()
        for w in self.nodes.values():
            for kind, name in (("rack", w.rack), ("switch", w.switch)):
                if name is not None:
                    found[kind, name] += w.ports
        return found


def rail_of(subject: Subject) -> str | None:
    """Return the rail of a NIC: the index in its device name, the same on every node."""
    found = _INDEX.search(subject.nic or "")
    return found.group(1) if found else None
