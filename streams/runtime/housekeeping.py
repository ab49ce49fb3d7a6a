"""What a worker does every second besides taking messages: its lag, its health file, its own pulse."""

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from aiokafka.errors import KafkaError

from streams.runtime.kafka.offsets import Place, Probe
from streams.runtime.monitoring.health import Health
from streams.runtime.monitoring.watchdog import Watchdog

log = logging.getLogger(__name__)

STALLED_EXIT_CODE = 70
"""EX_SOFTWARE of sysexits.h."""

# Rounds of a second between two questions for what the group has committed.
COMMITTED_EVERY = 5


def health_file(folder: Path, role: str, pid: int) -> Path:
    """Return where the worker of a process id writes about itself, every second."""
    return folder / f"streams-{role}-{pid}.json"


def pulse(folder: Path, pid: int) -> float:
    """Return when (Unix seconds) the worker of a process id last wrote about itself, 0 before it did."""
    try:
        return max((file.stat().st_mtime for file in folder.glob(f"streams-*-{pid}.json")), default=0.0)
    except FileNotFoundError:
        return 0.0


def end_process(why: str) -> None:
    """End the process at once: a worker that is stuck cannot be trusted to stop in good order."""
    log.critical("this worker is stuck: %s; ending it, so that it is started anew", why)
    logging.shutdown()
    os._exit(STALLED_EXIT_CODE)


class Housekeeper:
    """Keeps the books of one worker."""

    def __init__(
        self,
        *,
        health: Health,
        probe: Probe,
        watchdog: Watchdog,
        file: Path,
        stuck: Callable[[str], None] = end_process,
    ) -> None:
        self._health = health
        self._probe = probe
        self._watchdog = watchdog
        self._file = file
        self._stuck = stuck
        self._rounds = 0
        self.committed: dict[Place, int] = {}

    async def round(self, assigned: set[Place], positions: Mapping[Place, int]) -> dict[Place, int]:
        """Do one round; return the end offsets known, none when the brokers do not answer.

        ``positions`` are the next offsets of the partitions this worker has begun to read.
        """
        try:
            if self._rounds % COMMITTED_EVERY == 0:
                self.committed = await self._probe.committed()
                self._watchdog.note_committed(self.committed)
            # Without partitions of its own a worker watches those of the group (``Watchdog.orphaned``).
            ends = await self._probe.ends(assigned or self.committed)
        except KafkaError as error:
            log.warning("where the log ends is not known: %s", error)
            ends = {}
        self._rounds += 1
        lag = self._measure(ends, positions)
        self._health.write(self._file)
        why = self._watchdog.verdict(lag, assigned=bool(assigned))
        if why is not None:
            self._stuck(why)
        return ends

    def close(self) -> None:
        """Take the health file away: this worker has ended in good order."""
        self._file.unlink(missing_ok=True)

    def _measure(self, ends: Mapping[Place, int], positions: Mapping[Place, int]) -> int:
        behind: dict[str, int] = {}
        for place, end in ends.items():
            at = max(positions.get(place, 0), self.committed.get(place, 0))
            behind[place[0]] = behind.get(place[0], 0) + max(0, end - at)
        self._health.lag = behind
        return sum(behind.values())
