"""What ranks of a job that stands still were doing, by the dumps of PyTorch's flight recorder."""

import logging
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from exporters.collector import Instant, Reading, StepRows
from exporters.flight_recorder.dump import BadDump, Dump, read_dump
from exporters.host.device_threads import DeviceThreads
from exporters.job_folders import is_local, job_of, latest
from slowrank.telemetry import OpenStep

_log = logging.getLogger(__name__)

# Dumps that are older are left from another stop. Chosen: the time after which PyTorch gives up an operation.
LATEST_SECONDS = 600.0
# Files of one folder, those written last. Chosen: the ranks of a node, of some jobs that left theirs behind.
MAX_FILES = 256
# Reports that wait for the next tick.
MAX_WAITING = 1024


@dataclass(slots=True)
class _Folder:
    """The dumps of one configured folder, each read once."""

    folder: Path
    reports: "deque[tuple[str, OpenStep]]"
    unreadable: Counter[str]
    seen: dict[Path, int] = field(default_factory=dict)
    """When each was last written (ns)."""

    def read(self) -> None:
        """Read the dumps that are new, and queue what their ranks wait for."""
        try:
            # A dump does not name its host: those on a file system of several are read by hand.
            found = [*self.folder.glob("*rank_*"), *self.folder.glob("*/*rank_*")] if self._local() else []
            files = {path: path.stat().st_mtime_ns for path in latest(found, MAX_FILES)}
        except OSError:
            files = {}
        fresh = [path for path, written in files.items() if self.seen.get(path) != written]
        self.seen = files
        for path in fresh:
            age = time.time() - files[path] / 1e9
            if age < LATEST_SECONDS and (dump := self._dump(path)) is not None:
                self.reports.append((job_of(path), _open_step(dump, max(0.0, age))))

    def _local(self) -> bool:
        return is_local(self.folder)

    def _dump(self, path: Path) -> Dump | None:
        try:
            return read_dump(path)
        except BadDump as error:
            # One that is being written is read again when it has grown.
            _log.debug("%s: %s", path, error)
        except OSError as error:
            _log.debug("%s: %s", path, error)
        self.unreadable["dumps"] += 1
        return None


class FlightRecorderCollector:
    """Read the dumps in the folders of jobs; each rank whose operations have not ended waits in one."""

    name = "flight_recorder"
    columns: Mapping[str, str] = {}

    def __init__(self, folders: Sequence[str] = ()) -> None:
        self._reports: deque[tuple[str, OpenStep]] = deque(maxlen=MAX_WAITING)
        self._unreadable: Counter[str] = Counter()
        self._folders = {name: _Folder(Path(name), self._reports, self._unreadable) for name in folders}
        self._threads: DeviceThreads[None] = DeviceThreads(self.name, lambda name: self._folders[name].read())
        self._total = 0

    def collect(self, now: Instant) -> Reading:
        self._threads.collect(self._folders)
        jobs: dict[str, list[OpenStep]] = {}
        for job, report in self._waiting():
            jobs.setdefault(job, []).append(report)
            self._total += 1
        return Reading(
            steps=tuple(
                StepRows(job_id=job, attempt=0, world_size=0, labels={}, rows=(), open=tuple(reports))
                for job, reports in jobs.items()
            )
        )

    def metrics(self) -> Mapping[str, float]:
        return {
            "flight_recorder_dumps_total": self._total,
            "flight_recorder_unreadable_total": self._unreadable["dumps"],
        }

    def close(self) -> None:
        self._threads.close()

    def _waiting(self) -> Iterator[tuple[str, OpenStep]]:
        # Other threads append meanwhile.
        for _ in range(len(self._reports)):
            yield self._reports.popleft()


def _open_step(dump: Dump, age: float) -> OpenStep:
    """Return the report of a rank: in the phase of waiting where an operation has not ended, else in none."""
    waits = any(not one.done for one in dump.issued)
    return OpenStep(rank=dump.rank, step=0, phase="wait" if waits else "", seconds=age)
