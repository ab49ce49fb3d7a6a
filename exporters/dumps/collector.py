"""What ranks of a job that stands still are doing, by dumps of PyTorch's flight recorder and of py-spy."""

import logging
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from exporters.collector import Instant, Reading, StepRows
from exporters.dumps.file import BadDump, read_file
from exporters.dumps.flight_recorder import read_trace
from exporters.dumps.stack import is_stack, line_of, read_stack, waits
from exporters.host.device_threads import DeviceThreads
from exporters.job_folders import is_local, job_of, latest
from slowrank.telemetry import OpenStep
from slowrank.telemetry.checks import MAX_CODE_LINE

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
            age = max(0.0, time.time() - files[path] / 1e9)
            if age < LATEST_SECONDS and (report := self._report(path, age)) is not None:
                self.reports.append((job_of(path), report))

    def _local(self) -> bool:
        return is_local(self.folder)

    def _report(self, path: Path, age: float) -> OpenStep | None:
        try:
            rank, data = read_file(path)
            return _of_stack(rank, data, age) if is_stack(data) else _of_trace(rank, data, age)
        except (BadDump, OSError) as error:
            # One that is being written is read again when it has grown.
            _log.debug("%s: %s", path, error)
        self.unreadable["dumps"] += 1
        return None


class DumpsCollector:
    """Read the dumps in the folders of jobs; each rank whose operations have not ended waits in one."""

    name = "dumps"
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
            "rank_dumps_total": self._total,
            "rank_dumps_unreadable_total": self._unreadable["dumps"],
        }

    def close(self) -> None:
        self._threads.close()

    def _waiting(self) -> Iterator[tuple[str, OpenStep]]:
        # Other threads append meanwhile.
        for _ in range(len(self._reports)):
            yield self._reports.popleft()


def _of_trace(rank: int, data: bytes, age: float) -> OpenStep:
    """Return the report of a rank: in the phase of waiting where an operation has not ended, else in none."""
    issued = read_trace(rank, data).issued
    phase = "wait" if any(not one.done for one in issued) else ""
    return _open_step(rank, phase, age, issued[-1].caller if issued else "")


def _of_stack(rank: int, data: bytes, age: float) -> OpenStep:
    """Return the report of a rank: in the phase of waiting where it is in a collective, else in none."""
    frames = read_stack(data)
    return _open_step(rank, "wait" if waits(frames) else "", age, line_of(frames))


def _open_step(rank: int, phase: str, age: float, line: str) -> OpenStep:
    shown = "".join(c if c.isprintable() else "?" for c in line[-MAX_CODE_LINE:])
    return OpenStep(rank=rank, step=0, phase=phase, seconds=age, at=shown)
