"""Step rows from the files of NCCL Inspector, for jobs without the training hook."""

import logging
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from exporters.collector import Columns, Instant, Reading, StepRows
from exporters.host.device_threads import DeviceThreads
from exporters.nccl.log_files import LogFiles
from exporters.nccl.rank_steps import RankSteps
from exporters.nccl.record import Collective, parse

_log = logging.getLogger(__name__)

_PREFIX = "nccl-inspector-"
_NEEDS = "a job with NCCL Inspector, and its folder in SLOWRANK_EXPORTER_NCCL"

# Rows that wait for the next tick. Chosen: somewhat more than a tick takes from the training hook.
MAX_WAITING = 20_000


@dataclass(frozen=True, slots=True)
class _Row:
    job: str
    world_size: int
    columns: Columns


@dataclass(slots=True)
class _Folder:
    """The files of one configured folder; read in a thread of its own, as it may be on a network."""

    files: LogFiles
    rows: "deque[_Row]"
    unused: Counter[str]
    processes: dict[Path, RankSteps] = field(default_factory=dict)

    def read(self) -> None:
        """Read what is new, and queue the rows of completed steps.

        All at once: a reading that takes longer than a tick makes no rank later than others of its node.
        """
        found: list[_Row] = []
        errors = self.files.errors
        try:
            for path, lines in self.files.read():
                steps = self.processes.setdefault(path, RankSteps())
                changes = steps.changes
                rows = steps.add(self._collectives(lines))
                self.unused["sequence_changed"] += steps.changes - changes
                found += self._of_job(path, steps, rows)
        except OSError as error:
            errors.append(error)
        if errors and not self.unused["unreadable"]:
            _log.warning("files of NCCL Inspector cannot be read: %s", errors[0])
        self.unused["unreadable"] += len(errors)
        self.rows.extend(found)
        for gone in self.processes.keys() - self.files.paths():
            del self.processes[gone]

    def _collectives(self, lines: Sequence[bytes]) -> list[Collective]:
        found: list[Collective] = []
        for line in lines:
            try:
                one = parse(line)
            except msgspec.MsgspecError:
                self.unused["undecodable"] += 1
                continue
            if one is None:
                self.unused["point_to_point"] += 1
            else:
                found.append(one)
        return sorted(found, key=lambda one: one.stop)

    def _of_job(self, path: Path, steps: RankSteps, rows: Sequence[Columns]) -> list[_Row]:
        job = _job_of(path)
        size, communicator = steps.communicator
        others = {p.communicator for q, p in self.processes.items() if _job_of(q) == job}
        if any(other != (size, communicator) for other in others if other != (0, "")):
            # Ranks are numbered within a communicator: with several, their ranks in the job are unknown.
            self.unused["several_communicators"] += len(rows)
            return []
        return [_Row(job, size, columns) for columns in rows]


class NcclCollector:
    """Read the folders into which NCCL Inspector writes (``NCCL_INSPECTOR_DUMP_DIR``)."""

    name = "nccl"
    columns: Mapping[str, str] = dict.fromkeys(
        ("step", "ts", "rank", "step_seconds", "compute_seconds", "wait_seconds"), _NEEDS
    )

    def __init__(self, folders: Sequence[str] = ()) -> None:
        self._rows: deque[_Row] = deque(maxlen=MAX_WAITING)
        self._unused: Counter[str] = Counter()
        self._folders = {
            folder: _Folder(LogFiles(Path(folder)), self._rows, self._unused) for folder in folders
        }
        self._threads: DeviceThreads[None] = DeviceThreads(self.name, lambda name: self._folders[name].read())
        self._total = 0

    def collect(self, now: Instant) -> Reading:
        self._threads.collect(self._folders)
        jobs: dict[tuple[str, int], list[Columns]] = {}
        # Other threads append meanwhile.
        for _ in range(len(self._rows)):
            row = self._rows.popleft()
            jobs.setdefault((row.job, row.world_size), []).append(row.columns)
            self._total += 1
        return Reading(
            steps=tuple(
                StepRows(job_id=job, attempt=0, world_size=size, labels={}, rows=tuple(rows))
                for (job, size), rows in jobs.items()
            )
        )

    def metrics(self) -> Mapping[str, float]:
        unused = {f'nccl_unused_total{{reason="{reason}"}}': n for reason, n in list(self._unused.items())}
        return {
            "nccl_folders_blocked": self._threads.blocked,
            "nccl_step_rows_total": self._total,
            **unused,
        }

    def close(self) -> None:
        self._threads.close()


def _job_of(path: Path) -> str:
    """Return the job: the name of the file's folder, without the prefix that Inspector gives it."""
    return path.parent.name.removeprefix(_PREFIX)
