"""The children that read the GPUs of a node: one for all, and separate ones for GPUs that are slow or hang.

Every GPU has a deadline of its own, and within a child a thread of its own, so that a slow one does not delay
the others. The driver, however, may serialise the calls of one process. Slow GPUs, and all GPUs of a child
that has stalled, are therefore read by separate children until they are prompt again. A child replaces
another only once it is ready, so that no reading is lost meanwhile
(docs/decisions/0016-a-child-for-all-gpus-or-one-each.md).
"""

import logging
import select
import time
from collections.abc import Iterable, Sequence

from exporters.nvml.child_handle import Reader, Reply
from exporters.nvml.deadlines import (
    ABANDONED_PER_GPU,
    HARD_SECONDS,
    MAX_CHILDREN,
    PAUSE_SECONDS,
    PROMPT_SECONDS,
    RENEW_SECONDS,
    RETRY_SECONDS,
    RETRY_WITHOUT_DRIVER_SECONDS,
    SLOW_EVERY,
    SLOW_READS,
    SOFT_SECONDS,
    STALL_SECONDS,
    START_SECONDS,
    GpuState,
)
from exporters.nvml.process import NO_DRIVER, Child, ChildGone

_log = logging.getLogger(__name__)


class ReaderPool:
    """Assign every GPU to one reader. ``gpus`` holds the state of each by NVML's index."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._argv = tuple(argv)
        self._readers: list[Reader] = []
        self._coming: list[tuple[float, Reader]] = []
        # Children killed and not yet ended, each with the GPU that it read, -1 for several.
        self._abandoned: list[tuple[int, Child]] = []
        self._retry_at = 0.0
        self._renew_at = 0.0
        self._changed = False
        self._tick = 0
        self._groups = 0
        self.gpus: dict[int, GpuState] = {}
        self.restarts = 0

    @property
    def children(self) -> int:
        """Number of children, including those that were killed and cannot end."""
        return len(self._readers) + len(self._coming) + len(self._abandoned)

    @property
    def running(self) -> bool:
        """Whether any child runs or is starting."""
        return bool(self._readers or self._coming)

    @property
    def stuck(self) -> int:
        """Number of killed children that have not ended and keep the devices open."""
        return len(self._abandoned)

    def read(self, now: float) -> dict[int, Reply]:
        """Return the latest reading of each GPU that has answered since the last call."""
        self._tick += 1
        self._abandoned = [(gpu, child) for gpu, child in self._abandoned if child.status() is None]
        replies: dict[int, Reply] = {}
        self._receive(now, replies)
        self._take_over(now)
        self._judge(now)
        self._start(now)
        self._await(self._ask(now), now, replies)
        return replies

    def renew(self) -> None:
        """Count the GPUs and open their handles anew, after the driver's list of them has changed."""
        self._changed, self._retry_at, self._renew_at = True, 0.0, 0.0

    def end(self) -> None:
        """End every child, which closes the devices, except where a child cannot be killed."""
        for reader in (*self._readers, *(reader for _, reader in self._coming)):
            self._kill(reader)
        self._readers, self._coming, self.gpus = [], [], {}
        self._retry_at = 0.0
        for _, child in self._abandoned:
            child.wait(1.0)
        self._abandoned = [(gpu, child) for gpu, child in self._abandoned if child.status() is None]

    def _receive(self, now: float, replies: dict[int, Reply]) -> None:
        for reader in (*self._readers, *(reader for _, reader in self._coming)):
            if reader.ended:
                # Ended a moment ago together with one that found no driver.
                continue
            try:
                for reply in reader.replies():
                    self._note(reply, now)
                    replies[reply.index] = reply
            except ChildGone as gone:
                self._lost(reader, gone, now)

    def _note(self, reply: Reply, now: float) -> None:
        gpu = self.gpus[reply.index]
        gpu.seconds, gpu.unanswered = reply.seconds, None
        if reply.seconds > SOFT_SECONDS:
            gpu.slow_reads, gpu.slow_at = gpu.slow_reads + 1, now
        else:
            gpu.slow_reads = 0
        if reply.gone:
            # NVML's state of the whole process may be stale; the pause grows while the GPU stays away.
            self._renew_at = min(self._renew_at, now + gpu.pause)
            gpu.pause = min(2 * gpu.pause, PAUSE_SECONDS[1])
        else:
            gpu.pause = PAUSE_SECONDS[0]

    def _take_over(self, now: float) -> None:
        for started, reader in list(self._coming):
            if reader.found is not None:
                self._coming.remove((started, reader))
                self._install(reader, now)
            elif now - started > START_SECONDS:
                self._coming.remove((started, reader))
                self._kill(reader)
                self.restarts += 1
                self._retry(reader, now + RETRY_SECONDS)

    def _install(self, reader: Reader, now: float) -> None:
        found = reader.found or 0
        if reader.gpus is None:
            if self._changed or found != len(self.gpus):
                self._recount(found)
            reader.gpus = {index for index, gpu in self.gpus.items() if not gpu.apart}
            self._renew_at = now + RENEW_SECONDS
        for other in self._readers:
            other.gpus = (other.gpus or set()) - reader.gpus
        self._readers.append(reader)
        self._drop_idle()

    def _recount(self, found: int) -> None:
        _log.info("reading %d GPUs through NVML", found)
        self._changed = False
        self.gpus = {
            index: GpuState(seconds=before.seconds, unanswered=before.unanswered)
            if (before := self.gpus.get(index))
            else GpuState()
            for index in range(found)
        }
        for reader in self._readers:
            self._kill(reader)
        self._readers = []

    def _judge(self, now: float) -> None:
        for reader in list(self._readers):
            members = reader.gpus or set()
            overdue = reader.overdue(now, HARD_SECONDS)
            if len(members) == 1 and overdue:
                self._exclude(reader, overdue[0], now)
            elif len(members) > 1 and reader.stalled(now, STALL_SECONDS):
                self._split(reader, now)
            elif overdue:
                # The others move to a new child; the old one, with the thread that hangs, is ended later.
                self._divide(overdue, len(overdue))
                self._begin(members - set(overdue), now)
            elif len(members) > 1:
                slow = [index for index in members if self.gpus[index].slow_reads >= SLOW_READS]
                room = MAX_CHILDREN - len(self._readers) - len(self._coming)
                for index in slow[: max(0, room)]:
                    self._divide({index}, 1)
                    self._begin({index}, now)
        self._rejoin(now)

    def _divide(self, gpus: Iterable[int], children: int) -> None:
        """Divide GPUs among so many children, or one each where they are fewer."""
        members = sorted(gpus)
        for place, index in enumerate(members):
            self.gpus[index].group = self._groups + 1 + place % children
        self._groups += children

    def _divide_all(self, reader: Reader, now: float) -> None:
        # Any of them may block the others: in smaller groups the one at fault shows.
        self._divide(reader.gpus or (), MAX_CHILDREN)
        for index in reader.gpus or ():
            self.gpus[index].slow_at = now

    def _rejoin(self, now: float) -> None:
        """Move GPUs that have been prompt for ``PROMPT_SECONDS`` back to a shared child."""
        coming = {index for _, reader in self._coming for index in reader.gpus or ()}
        prompt = [
            index
            for index, gpu in self.gpus.items()
            if gpu.apart
            and index not in coming
            and gpu.unanswered is None
            and now - gpu.slow_at > PROMPT_SECONDS
        ]
        shared = [reader for reader in self._readers if self._shared(reader)]
        if not shared and len(prompt) > 1:
            self._begin(prompt, now)
        for index in prompt:
            if shared or len(prompt) > 1:
                self.gpus[index].group = 0
        for index in prompt if shared else ():
            for other in self._readers:
                (other.gpus or set()).discard(index)
            (shared[0].gpus or set()).add(index)
        self._drop_idle()

    def _shared(self, reader: Reader) -> bool:
        return any(not self.gpus[index].apart for index in reader.gpus or ()) and not self._stuck_in(reader)

    def _stuck_in(self, reader: Reader) -> bool:
        return any(index not in (reader.gpus or ()) for index in reader.asked)

    def _split(self, reader: Reader, now: float) -> None:
        self._divide_all(reader, now)
        self._readers.remove(reader)
        self._kill(reader)
        self.restarts += 1

    def _exclude(self, reader: Reader, index: int, now: float) -> None:
        self._readers.remove(reader)
        self._kill(reader)
        self.restarts += 1
        gpu = self.gpus[index]
        # A child in an uninterruptible call cannot be killed: limit how many there are.
        stuck = sum(1 for owner, _ in self._abandoned if owner == index)
        gpu.retry_at = now + gpu.pause if stuck <= ABANDONED_PER_GPU else float("inf")
        gpu.pause = min(2 * gpu.pause, PAUSE_SECONDS[1])
        self._divide({index}, 1)

    def _start(self, now: float) -> None:
        whole = any(reader.gpus is None for _, reader in self._coming)
        due = not self.gpus or self._changed or (now >= self._renew_at and not self._abandoned)
        if due and not whole and now >= self._retry_at:
            self._begin(None, now)
        held = [reader.gpus or set() for reader in (*self._readers, *(r for _, r in self._coming))]
        free = [
            index
            for index, gpu in self.gpus.items()
            if now >= gpu.retry_at and not any(index in members for members in held)
        ]
        for group in sorted({self.gpus[index].group for index in free}):
            self._begin({index for index in free if self.gpus[index].group == group}, now)

    def _begin(self, gpus: Iterable[int] | None, now: float) -> None:
        """Start a reader of ``gpus``, of all for None, unless one for them is already starting."""
        members = None if gpus is None else set(gpus)
        coming = [reader.gpus for _, reader in self._coming]
        if members is not None and (not members or any(members <= (other or set()) for other in coming)):
            return
        try:
            self._coming.append((now, Reader(self._argv, members)))
        except ChildGone:
            self._retry(None, now + RETRY_SECONDS, members)

    def _ask(self, now: float) -> set[int]:
        awaited: set[int] = set()
        for reader in list(self._readers):
            if reader.ended:
                continue
            wanted = sorted((reader.gpus or set()) - reader.asked.keys())
            full = [index for index in wanted if self._tick >= self.gpus[index].full_at]
            try:
                reader.ask(wanted, full, now)
            except ChildGone as gone:
                self._lost(reader, gone, now)
                continue
            for index in wanted:
                gpu = self.gpus[index]
                gpu.unanswered = now if gpu.unanswered is None else gpu.unanswered
                if index in full:
                    # Spread over the ticks, except the first, which reads the limits of all GPUs.
                    spread = 1 + index % SLOW_EVERY if gpu.full_at == 0 else SLOW_EVERY
                    gpu.full_at = self._tick + spread
                if gpu.seconds <= SOFT_SECONDS:
                    awaited.add(index)
        return awaited

    def _await(self, awaited: set[int], now: float, replies: dict[int, Reply]) -> None:
        """Receive replies until all ``awaited`` GPUs have answered, at most ``SOFT_SECONDS``."""
        deadline = time.monotonic() + SOFT_SECONDS
        while self._readers and any(
            self.gpus[index].unanswered == now for index in awaited & self.gpus.keys()
        ):
            left = deadline - time.monotonic()
            ready, _, _ = select.select([reader.child for reader in self._readers], [], [], max(0.0, left))
            if not ready:
                return
            self._receive(now, replies)

    def _lost(self, reader: Reader, gone: ChildGone, now: float) -> None:
        """Handle a child that ended by itself."""
        self._readers = [other for other in self._readers if other is not reader]
        self._coming = [(at, other) for at, other in self._coming if other is not reader]
        self._kill(reader)
        if gone.status == NO_DRIVER:
            again = RETRY_WITHOUT_DRIVER_SECONDS / 60
            _log.info(
                "no GPU is read: NVML or its driver is missing (does nvidia-smi work?); next try in %.0f min",
                again,
            )
            self.end()
            self._retry_at = now + RETRY_WITHOUT_DRIVER_SECONDS
            return
        self.restarts += 1
        if len(reader.gpus or ()) > 1:
            # Reading one of them may have ended it.
            self._divide_all(reader, now)
        else:
            self._retry(reader, now + RETRY_SECONDS)

    def _retry(self, reader: Reader | None, at: float, gpus: Iterable[int] | None = None) -> None:
        members = (reader.gpus if reader is not None else gpus) or ()
        for index in members:
            self.gpus[index].retry_at = at
        if not members:
            self._retry_at = at

    def _drop_idle(self) -> None:
        for reader in [reader for reader in self._readers if not reader.gpus]:
            self._readers.remove(reader)
            self._kill(reader)

    def _kill(self, reader: Reader) -> None:
        reader.kill()
        members = reader.gpus or set()
        self._abandoned.append((min(members) if len(members) == 1 else -1, reader.child))
