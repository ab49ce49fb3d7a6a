"""A detecting worker without brokers, and the memory of this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from slowrank.telemetry.topics import JOB_STEPS, NODE_EVENTS, NODE_SAMPLES
from streams.config.settings import Tuning
from streams.job.memory import JobMemory
from streams.runtime.detect_worker import Detect
from streams.runtime.kafka.message import Message, Outgoing, PartitionId
from streams.runtime.monitoring.health import Health
from streams.runtime.partitions.context import WorkerContext

Sent = tuple[float, bytes]
"""When a message was sent to the topic of suspicions (Unix seconds), and the message."""


class LocalWorker:
    """A detecting worker on one partition of each topic; ``sent`` is what it sends to ``suspicions``.

    Its clock is that of the messages, which are logged when they are made.
    """

    def __init__(self, start: float, partition: int = 0) -> None:
        self.now = start
        self.sent: list[Sent] = []
        self._partition = partition
        topics = (NODE_SAMPLES, NODE_EVENTS, JOB_STEPS)
        self._ends: dict[PartitionId, int] = dict.fromkeys(((topic, partition) for topic in topics), 0)
        self.health = Health("detect", lambda: self.now)
        context = WorkerContext(
            name=lambda topic: topic,
            reread=_nothing,
            producer=self,
            health=self.health,
            now=lambda: self.now,
            window=600.0,
        )
        self._job_ends: list[bytes] = []
        self._detect = Detect(context, tuning=Tuning())

    def post(self, messages: Sequence[Outgoing]) -> asyncio.Future[None]:
        """Keep what would be sent: suspicions apart, the ends of jobs for the next round."""
        self.sent += [(self.now, m.value) for m in messages if m.topic == "suspicions"]
        self._job_ends = [m.value for m in messages if m.topic == JOB_STEPS]
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    async def take(self, ts: float, topic: str, value: bytes) -> None:
        """Process a message that is logged at ``ts``, or now if that has passed."""
        self.now = max(self.now, ts)
        place = topic, self._partition
        message = Message(topic, self._partition, self._ends[place], self.now, value)
        self._ends[place] += 1
        await self._detect.take(message)
        ends, self._job_ends = self._job_ends, []
        for end in ends:
            await self.take(self.now, JOB_STEPS, end)

    def look(self, seconds: float = 0.0) -> None:
        """Do what a worker does once a second, after so many seconds without a message."""
        self.now += seconds
        self._detect.idle(self._ends, self._ends)

    @property
    def jobs(self) -> JobMemory:
        """The memory of the jobs, as of the last look."""
        return self.health.jobs


async def _nothing(_topic: str, _partition: int, _since: float, _upto: int) -> AsyncIterator[Message]:
    for message in tuple[Message, ...]():
        yield message
