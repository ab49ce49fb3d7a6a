"""Step rows from the files of NCCL Inspector, for jobs without the training hook."""

import logging
import socket
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from exporters.collector import Columns, Instant, Reading, StepRows
from exporters.host.device_threads import DeviceThreads
from exporters.job_folders import job_of
from exporters.nccl.job_ranks import job_communicator, working
from exporters.nccl.log_files import LogFiles, is_written_by
from exporters.nccl.rank_steps import RankSteps
from exporters.nccl.record import Operation, parse

_log = logging.getLogger(__name__)

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
    standing: frozenset[str] = frozenset()
    """Jobs with a process that is there and has issued nothing since the last reading."""

    def read(self) -> None:
        """Read what is new, and queue the rows of completed steps.

        All at once: a reading that takes longer than a tick makes no rank later than others of its node.
        """
        completed: list[tuple[Path, list[Columns]]] = []
        errors = self.files.errors
        try:
            for new in self.files.read():
                steps = self.processes.setdefault(new.path, RankSteps())
                changes = steps.changes
                steps.introduce(self._operations(new.beginning))
                completed.append((new.path, steps.add(self._operations(new.lines))))
                self.unused["sequence_changed"] += steps.changes - changes
        except OSError as error:
            errors.append(error)
        if errors and not self.unused["unreadable"]:
            _log.warning("files of NCCL Inspector cannot be read: %s", errors[0])
        self.unused["unreadable"] += len(errors)
        for gone in self.processes.keys() - self.files.paths():
            del self.processes[gone]
        self.rows.extend(self._of_jobs(completed))
        quiet = self.processes.keys() - {path for path, _ in completed}
        self.standing = frozenset(job_of(p) for p in quiet if is_written_by(p, self.processes[p].pid))

    def _operations(self, lines: Sequence[bytes]) -> list[Operation]:
        found: list[Operation] = []
        for line in lines:
            try:
                found.append(parse(line))
            except msgspec.MsgspecError:
                self.unused["undecodable"] += 1
        return sorted(found, key=lambda one: one.stop)

    def _of_jobs(self, completed: Sequence[tuple[Path, list[Columns]]]) -> list[_Row]:
        """Return the rows with the ranks of their jobs."""
        found: list[_Row] = []
        for job in {job_of(path) for path, rows in completed if rows}:
            processes = working([steps for path, steps in self.processes.items() if job_of(path) == job])
            whole = job_communicator(processes)
            for path, rows in completed:
                if job_of(path) != job:
                    continue
                one = self.processes[path].members.get(whole or "")
                if one is None:
                    self._unknown_rank(job, len(rows))
                    continue
                found += [_Row(job, one.ranks, {**columns, "rank": one.rank}) for columns in rows]
        return found

    def _unknown_rank(self, job: str, rows: int) -> None:
        if not self.unused["no_communicator_of_all"]:
            _log.warning(
                "job %s: the files of NCCL Inspector show no communicator of all ranks, so that steps have no"
                " rank and are left out; with NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES=0 it is written where used",
                job,
            )
        self.unused["no_communicator_of_all"] += rows


class NcclCollector:
    """Read the folders into which NCCL Inspector writes (``NCCL_INSPECTOR_DUMP_DIR``)."""

    name = "nccl"
    columns: Mapping[str, str] = dict.fromkeys(
        ("step", "ts", "rank", "step_seconds", "compute_seconds", "wait_seconds"), _NEEDS
    )

    def __init__(self, folders: Sequence[str] = (), hosts: Sequence[str] = ()) -> None:
        """Read ``folders``; ``hosts`` are names of this host besides its own."""
        self._rows: deque[_Row] = deque(maxlen=MAX_WAITING)
        self._unused: Counter[str] = Counter()
        names = {socket.gethostname(), *hosts}
        self._folders = {
            folder: _Folder(LogFiles(Path(folder), names), self._rows, self._unused) for folder in folders
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
        for folder in self._folders.values():
            for job in folder.standing - {job for job, _ in jobs}:
                # Without rows it remains the job of the node: it hangs, or is in a long step.
                jobs[job, 0] = []
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
            "nccl_files_of_other_hosts": sum(folder.files.others for folder in self._folders.values()),
            "nccl_step_rows_total": self._total,
            **unused,
        }

    def close(self) -> None:
        self._threads.close()
