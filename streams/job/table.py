"""The jobs that a stage holds: for how long, in how many bytes, and which go first when there is no room.

Jobs are let go by what the records hold alone: event times, and which job works where. A job that goes on is
never let go for a newer one; the newer one is refused, and counted.
"""

import math
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from detectors.job.progress import FORGET_SECONDS

J = TypeVar("J")

JobKey = tuple[str, str]
"""Cluster and job."""

GpuPlace = tuple[str, str, int]
"""Cluster, node and GPU (-1: not known) that a rank works on."""

# Event time for which an ended job is kept: ends are declared too early, and its last rows may be late.
# Chosen: exporters that were cut off send for minutes what they have spooled.
LINGER_SECONDS = 300.0

# A job may be let go for a new one after so long without a row: checkpoints and evaluations of recorded jobs
# last up to some minutes, and a stall of any job counts as certain after two (``detectors.job.progress``).
SILENT_SECONDS = 600.0

# A row so soon after the end of its job is of before it. Chosen: the event and the rows come from several
# clocks, which differ by seconds where they are not synchronised.
CLOCKS_SECONDS = 10.0

# A job counts as refused for so long after its last record, and no more than so many are remembered. Chosen:
# a minute is several sends of any exporter; names come from outside, and so many take tens of MB.
REFUSED_SECONDS = 60.0
MAX_REFUSED = 100_000


@dataclass(slots=True)
class _Held(Generic[J]):
    """A job and what is reserved for it.

    ``touched`` is the stage's event time at its last record, ``latest`` that of its latest row. Of its
    ``places``, ``owned`` are its own; other jobs took the rest from ``since`` on.
    """

    job: J
    reserved: int
    touched: float
    latest: float
    ended: float | None = None
    places: frozenset[GpuPlace] = frozenset()
    owned: int = 0
    since: float = math.inf


class JobTable(Generic[J]):
    """Jobs by key, least recently touched first; ``limit`` bounds the sum of the bytes reserved for them."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.reserved = 0
        self.refused: dict[JobKey, float] = {}
        self._held: OrderedDict[JobKey, _Held[J]] = OrderedDict()
        self._ended: dict[JobKey, None] = {}
        self._owners: dict[GpuPlace, JobKey] = {}
        self._now = -math.inf

    def __len__(self) -> int:
        return len(self._held)

    def items(self) -> Iterator[tuple[JobKey, J]]:
        """Yield all jobs held, those that have ended too."""
        return ((key, held.job) for key, held in self._held.items())

    def get(self, key: JobKey) -> J | None:
        """Return a job that is held."""
        held = self._held.get(key)
        return None if held is None else held.job

    def live(self) -> Iterator[tuple[JobKey, J]]:
        """Yield the jobs that have not ended."""
        return ((key, held.job) for key, held in self._held.items() if held.ended is None)

    def room_for(self, need: int) -> Iterator[tuple[JobKey, J]]:
        """Let jobs go until ``need`` bytes fit or only jobs that go on are left; yield those let go.

        None goes for what would not fit if all did.
        """
        while need <= self.limit < self.reserved + need:
            key = next(iter(self._ended), None)
            if key is None:
                key, oldest = next(iter(self._held.items()), (None, None))
                if key is None or oldest is None or oldest.touched > self._now - SILENT_SECONDS:
                    return
            yield key, self._drop(key)

    def admit(self, key: JobKey, job: J, *, ts: float, need: int) -> bool:
        """Hold a new job from event time ``ts`` on; return False, and count it, if it does not fit."""
        if self.reserved + need > self.limit:
            if len(self.refused) < MAX_REFUSED or key in self.refused:
                self.refused[key] = ts
            return False
        self.refused.pop(key, None)
        self._held[key] = _Held(job, need, ts if math.isinf(self._now) else self._now, ts)
        self.reserved += need
        return True

    def touch(self, key: JobKey, ts: float) -> bool:
        """Note a row of a job that is held; return whether the job had ended and goes on: one well after its
        end shows that."""
        held = self._held[key]
        self._held.move_to_end(key)
        # By the stage's time, not by the row's: a clock that is ahead cannot keep a job.
        held.touched = ts if math.isinf(self._now) else self._now
        held.latest = max(held.latest, ts)
        goes_on = held.ended is not None and ts > held.ended + CLOCKS_SECONDS
        if goes_on:
            held.ended = None
            self._ended.pop(key)
        # Another job has taken a place of it, and it goes on all the same: they share the GPU.
        if ts > held.since and held.ended is None:
            held.since = math.inf
            self._take_back(key, held)
        return goes_on

    def reserve(self, key: JobKey, need: int) -> None:
        """Change what is reserved for a job, which goes on even if that does not fit."""
        self.reserved += need - self._held[key].reserved
        self._held[key].reserved = need

    def end(self, key: JobKey, ts: float) -> bool:
        """Note that a job has ended by event time ``ts``; return whether it had not ended before."""
        held = self._held.get(key)
        if held is None or held.ended is not None or held.latest > ts + CLOCKS_SECONDS:
            return False
        held.ended = ts
        self._ended[key] = None
        return True

    def work_at(self, key: JobKey, places: Collection[GpuPlace], since: float) -> list[JobKey]:
        """Note where a job works since event time ``since``; return the jobs of which it has the last place.

        Only a job without a row since then loses a place: two may share a GPU.
        """
        held, losers = self._held[key], set[JobKey]()
        for place in held.places.difference(places):
            if self._owners.get(place) == key:
                del self._owners[place]
        held.places, held.owned = frozenset(places), 0
        for place in held.places:
            owner = self._owners.get(place, key)
            if owner != key:
                other = self._held[owner]
                if other.latest >= since:
                    continue
                other.owned, other.since = other.owned - 1, min(other.since, since)
                losers.add(owner)
            self._owners[place] = key
            held.owned += 1
        return sorted(loser for loser in losers if self._held[loser].owned == 0)

    def let_go(self, event_time: float) -> list[tuple[JobKey, J, bool]]:
        """Let event time pass; return the jobs that are held no more, and whether each has ended."""
        self._now = max(self._now, event_time)
        out: list[tuple[JobKey, J, bool]] = []
        while self._ended:
            key = next(iter(self._ended))
            if (self._held[key].ended or 0.0) > self._now - LINGER_SECONDS:
                break
            out.append((key, self._drop(key), True))
        # The least recently touched comes first: behind one that stays all others stay.
        while self._held:
            key, held = next(iter(self._held.items()))
            if held.touched > self._now - FORGET_SECONDS:
                break
            out.append((key, self._drop(key), False))
        return out

    def refused_of(self) -> Counter[str]:
        """Return how many jobs of each cluster with jobs here were refused within the last minute."""
        oldest = self._now - REFUSED_SECONDS
        self.refused = {key: ts for key, ts in self.refused.items() if ts >= oldest}
        # Zeros too: by them a shortage that was reported before is seen to be over.
        counted = Counter(dict.fromkeys((cluster for cluster, _ in self._held), 0))
        counted.update(cluster for cluster, _ in self.refused)
        return counted

    def _take_back(self, key: JobKey, held: _Held[J]) -> None:
        for place in held.places:
            owner = self._owners.get(place, key)
            if owner != key:
                self._held[owner].owned -= 1
            self._owners[place] = key
        held.owned = len(held.places)

    def _drop(self, key: JobKey) -> J:
        held = self._held.pop(key)
        self._ended.pop(key, None)
        self.reserved -= held.reserved
        for place in held.places:
            if self._owners.get(place) == key:
                del self._owners[place]
        return held.job
