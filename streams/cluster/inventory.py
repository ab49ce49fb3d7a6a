"""Where the nodes of a cluster stand: told by the node stage now and then, known by the finding stage.

The finding stage hears only of what is wrong. To tell a rack from a coincidence it must know who else is in
the rack and well, and to tell a broken telemetry path how many nodes there are; so every node is announced,
as the end of a suspicion that nobody ever raised.
"""

import math
import re
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from slowrank.telemetry import Evidence, NodeSample, Subject, Suspicion
from streams.earliest import Earliest
from streams.suspicions import Place, told

PLACE_KIND = "self.place"
REPEAT_SECONDS = 300
DEPARTED_SECONDS = 3600.0
"""A node that has not been announced for so long no longer counts as a member of anything."""
EXPECTED_SECONDS = 900.0
"""A node announced so much longer ago than others has left: it has sent nothing for ten minutes at least."""

_INDEX = re.compile(r"(\d+)\D*$")

_Said = tuple[int, str | None, str | None]
"""Of which five minutes, and where the node stands."""


class Places:
    """Announces each node when it is first seen, when it moves, and every five minutes.

    Every node has seconds of its own for that, the same after a restart.
    """

    def __init__(self) -> None:
        self._told: dict[tuple[str, str], tuple[float, _Said]] = {}
        self._oldest = Earliest()

    def seen(self, sample: NodeSample, place: Place) -> list[Suspicion]:
        """Return the announcement that a sample read at ``place`` makes due, if any."""
        key = (sample.cluster, sample.node)
        # ``hash`` of a name would be another in every process.
        turn = math.floor((sample.ts + zlib.crc32(sample.node.encode()) % REPEAT_SECONDS) / REPEAT_SECONDS)
        said = (turn, place.rack, place.switch)
        if self._told.get(key, (0.0, None))[1] == said:
            return []
        self._told[key] = (sample.ts, said)
        self._oldest.note(sample.ts)
        # At whole seconds, so that the announcements of a fleet are folded in few steps.
        return [_announced(place, len(sample.nic_ids), float(math.ceil(sample.ts)))]

    def forget(self, oldest: float) -> None:
        """Drop the nodes last told of before ``oldest``."""
        if self._oldest.reached(oldest):
            for key in [key for key, (at, _) in self._told.items() if at < oldest]:
                del self._told[key]
            self._oldest.counted(at for at, _ in self._told.values())


@dataclass(frozen=True, slots=True)
class Where:
    """The domains of one node and how many network ports it has; ``told_at`` is event time."""

    rack: str | None
    switch: str | None
    ports: int
    told_at: float


@dataclass(frozen=True)
class Layout:
    """The nodes ``known`` to a cluster's finding stage; ``nodes`` are those that say where they stand."""

    known: Mapping[str, Where] = field(default_factory=dict)

    def told(self, announced: Sequence[Suspicion]) -> "Layout":
        """Return the layout after announcements of one event time."""
        if not announced:
            return self
        new = {s.subject.node or "": _where(s) for s in announced}
        known = {**self.known, **new}
        # Who has left is looked for only when somebody comes: nearly all announcements are repetitions.
        if not new.keys() <= self.known.keys():
            oldest = announced[0].ts - DEPARTED_SECONDS
            known = {n: w for n, w in known.items() if w.told_at >= oldest}
        return Layout(known)

    @cached_property
    def expected(self) -> int:
        """How many nodes report, or did until a few minutes before the last announcement."""
        latest = max((w.told_at for w in self.known.values()), default=0.0)
        return sum(latest - w.told_at <= EXPECTED_SECONDS for w in self.known.values())

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


def _where(s: Suspicion) -> Where:
    ports = next((int(e.value) for e in s.evidence), 0)
    return Where(s.subject.rack, s.subject.switch, ports, s.ts)


def _announced(place: Place, ports: int, ts: float) -> Suspicion:
    count = Evidence(metric="nic.ports", unit="1", detector="places", value=float(ports))
    return told(
        PLACE_KIND,
        place.whole_node(),
        detector="places",
        family="telemetry",
        ts=ts,
        onset=ts,
        evidence=(count,),
    )
