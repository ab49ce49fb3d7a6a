"""A worker's work every second besides messages: measure the lag, write the health file, run the watchdog."""

import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path

from aiokafka.errors import KafkaError

from streams.runtime.kafka.message import PartitionId
from streams.runtime.kafka.offsets import Probe
from streams.runtime.monitoring.health import Health
from streams.runtime.monitoring.watchdog import Watchdog

log = logging.getLogger(__name__)

# EX_SOFTWARE of sysexits.h.
STALLED_EXIT_CODE = 70

# Rounds between two requests for committed offsets. Chosen: well below the watchdog's limits.
COMMITTED_EVERY = 5


def health_file(folder: Path, role: str, pid: int) -> Path:
    """Return the path of the health file of a worker process."""
    return folder / f"streams-{role}-{pid}.json"


def pulse(folder: Path, pid: int) -> float:
    """Return when (Unix seconds) a worker process last wrote its health file, 0 before it did."""
    try:
        return max((file.stat().st_mtime for file in folder.glob(f"streams-*-{pid}.json")), default=0.0)
    except FileNotFoundError:
        return 0.0


def end_process(why: str) -> None:
    """End the process at once: a stuck worker may never finish an orderly stop."""
    log.critical("this worker is stuck: %s; ending it, so that it is restarted", why)
    logging.shutdown()
    os._exit(STALLED_EXIT_CODE)


class Housekeeper:
    """Measures lag, writes the health file and runs the watchdog of one worker."""

    def __init__(
        self,
        *,
        health: Health,
        probe: Probe,
        watchdog: Watchdog,
        file: Path,
    ) -> None:
        self._health = health
        self._probe = probe
        self._watchdog = watchdog
        self._file = file
        self._rounds = 0
        self.committed: dict[PartitionId, int] = {}

    async def round(
        self, assigned: set[PartitionId], positions: Mapping[PartitionId, int]
    ) -> dict[PartitionId, int]:
        """Do one round; return the end offsets, none when the brokers do not answer.

        ``positions`` are the next offsets of the partitions this worker has begun to read.
        """
        try:
            if self._rounds % COMMITTED_EVERY == 0:
                self.committed = await self._probe.committed()
                self._watchdog.note_committed(self.committed)
            # Without partitions of its own a worker watches those of the group (``Watchdog.orphaned``).
            ends = await self._probe.ends(assigned or self.committed)
        except KafkaError as error:
            log.warning("the end of the log is unknown: %s", error)
            ends = {}
        self._rounds += 1
        lag = self._measure(ends, positions)
        self._health.write(self._file)
        why = self._watchdog.verdict(lag, assigned=bool(assigned))
        if why is not None:
            end_process(why)
        return ends

    def close(self) -> None:
        """Remove the health file: this worker has stopped in order."""
        self._file.unlink(missing_ok=True)

    def _measure(self, ends: Mapping[PartitionId, int], positions: Mapping[PartitionId, int]) -> int:
        behind: dict[str, int] = {}
        oldest: dict[str, float] = {}
        reached = {place: max(positions.get(place, 0), self.committed.get(place, 0)) for place in ends}
        for place, age in self._health.ages.note(time.time(), ends, reached).items():
            topic = place[0]
            behind[topic] = behind.get(topic, 0) + max(0, ends[place] - reached[place])
            oldest[topic] = max(oldest.get(topic, 0.0), age)
        self._health.lag, self._health.age_seconds = behind, oldest
        return sum(behind.values())
