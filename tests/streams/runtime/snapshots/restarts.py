"""Workers that are killed now and then, and go on from their snapshots and the log."""

import math
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from slowrank.telemetry import Record, encode
from streams.config.settings import Tuning
from streams.runtime.detect_worker import Detect
from streams.runtime.kafka.message import Message, PartitionId
from streams.runtime.monitoring.health import Health
from streams.runtime.monitoring.snapshot_counts import SnapshotCounts
from streams.runtime.partitions.context import WorkerContext
from streams.runtime.snapshots.snapshot_folder import SnapshotFolder
from tests.streams.partitions import Workers


class KilledWorkers(Workers):
    """A detecting worker that is killed ``kills`` times while the records come.

    Each partition has a snapshot from some moment before, or none; what is committed lies up to ``behind``
    messages before what was processed. Without a ``folder`` there are no snapshots.
    """

    def __init__(
        self, partitions: int, folder: Path | None, *, seed: int, kills: int = 3, behind: int = 30
    ) -> None:
        super().__init__(partitions)
        self._chance, self._kills, self._behind = random.Random(seed), kills, behind
        # Apart, so that a worker without snapshots is killed at the same moments.
        self._saves = random.Random(seed)
        self._log: dict[PartitionId, list[Message]] = defaultdict(list)
        self._folder = folder
        self.counts = SnapshotCounts()
        self.read_again = 0
        self._detect = self._started()

    def _started(self) -> Detect:
        snapshots = None
        if self._folder is not None:
            snapshots = SnapshotFolder(
                self._folder,
                identity="this code",
                read_on=self._read_on,
                counts=self.counts,
                now=lambda: self._now,
            )
        self._snapshots = snapshots
        context = WorkerContext(
            name=lambda topic: topic,
            reread=self._reread,
            producer=self,
            health=Health("detect", lambda: self._now),
            now=lambda: self._now,
            window=600.0,
            snapshots=snapshots,
        )
        return Detect(context, tuning=Tuning())

    async def _reread(self, topic: str, partition: int, since: float, upto: int) -> AsyncIterator[Message]:
        for message in self._log[topic, partition][:upto]:
            if message.timestamp >= since:
                self.read_again += 1
                yield message

    async def _read_on(self, topic: str, partition: int, first: int, upto: int) -> AsyncIterator[Message]:
        for message in self._log[topic, partition][first:upto]:
            self.read_again += 1
            yield message

    async def _take_all(self, records: Sequence[Record]) -> None:
        killed_at = set(self._chance.sample(range(len(records)), self._kills))
        for number, record in enumerate(records):
            looked, self._now = self._now, max(self._now, record.ts)
            await self._take(self._logged(self._place(record), encode(record)))
            if math.floor(self._now) > math.floor(looked):
                self._detect.idle(self._ends, self._ends)
                self._save(0.05)
            self._judge()
            if number in killed_at:
                await self._killed()
        self._end(float(math.ceil(self._now)))

    def _logged(self, place: PartitionId, value: bytes) -> Message:
        message = Message(*place, len(self._log[place]), self._now, value)
        self._log[place].append(message)
        self._ends[place] = len(self._log[place])
        return message

    async def _take(self, message: Message) -> None:
        await self._detect.take(message)
        # What events put into the topic of steps: the ends of jobs.
        ends = [outgoing for outgoing in self._sent if outgoing.topic == "job-steps"]
        self._sent = [outgoing for outgoing in self._sent if outgoing.topic != "job-steps"]
        for end in ends:
            await self._detect.take(self._logged(self._place_of("job-steps", end.key), end.value))

    def _save(self, share: float) -> None:
        """Take a snapshot of some partitions."""
        for place in sorted(self._detect.partitions.states):
            if self._snapshots is not None and self._saves.random() < share:
                snapshot = self._detect.partitions.snapshot(place)
                if snapshot is not None:
                    self._snapshots.save(place, snapshot)

    async def _killed(self) -> None:
        done = self._detect.partitions.positions
        committed = {p: max(0, at - self._chance.randint(0, self._behind)) for p, at in done.items()}
        self._detect = self._started()
        for place in sorted(committed):
            await self._detect.prepare(place, committed[place], timestamp=self._now)
        self._detect.idle(self._ends, self._ends)
        for place in sorted(committed):
            for message in self._log[place][committed[place] :]:
                await self._take(message)
        self._judge()
