"""Starts worker processes, restarts those that end or hang, and stops them with itself."""

import logging
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType

log = logging.getLogger(__name__)

# Between two starts of a worker that keeps ending. Chosen: two log lines a minute, and a short outage.
LONGEST_PAUSE_SECONDS = 30.0
# Before the first heartbeat: a worker reads minutes of the log again first. Chosen.
START_SECONDS = 180.0
# Run time after which a command is started again at once, as at first. Chosen: twice the longest pause.
HEALTHY_AFTER_SECONDS = 60.0
# Before a worker that does not end is killed. Chosen: above its own limits of 5 s for each connection.
STOP_SECONDS = 20.0


@dataclass(slots=True)
class _Child:
    command: Sequence[str]
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    pause: float = 0.0
    again_at: float = 0.0
    beat: float = 0.0
    beat_at: float = 0.0


class Supervisor:
    """Runs commands side by side until ``stop`` is set.

    A command that ends is started again: at once the first time and if it ran for a minute, else after a
    pause that doubles up to half a minute. Before, ``ended`` is called with its process id, unless it ended
    in order. One that runs without a heartbeat for ``silent_seconds`` is killed: ``pulse`` gives for a
    process id a number that changes with every heartbeat, 0 before the first.
    """

    def __init__(
        self,
        commands: Sequence[Sequence[str]],
        *,
        pulse: Callable[[int], float] | None = None,
        ended: Callable[[int], None] | None = None,
        silent_seconds: float = 120.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._children = [_Child(command) for command in commands]
        self._pulse = pulse
        self._ended = ended
        self._silent_seconds = silent_seconds
        self._clock = clock
        self.stop = threading.Event()

    def run(self) -> None:
        """Block until stopped; every child has ended when this returns."""
        try:
            while not self.stop.wait(0.2):
                for child in self._children:
                    self._look_after(child)
        finally:
            self._end_all()

    def _look_after(self, child: _Child) -> None:
        now = self._clock()
        if child.process is None:
            if now >= child.again_at:
                child.process, child.started = subprocess.Popen(child.command), now
                child.beat, child.beat_at = 0.0, now
            return
        code = child.process.poll()
        if code is None:
            self._check(child, child.process, now)
            return
        if now - child.started >= HEALTHY_AFTER_SECONDS:
            child.pause = 0.0
        log.warning("worker ended with code %d, starting it again in %.0f s", code, child.pause)
        if code and self._ended is not None:
            # Beside the restart: a server that does not answer must not delay it.
            threading.Thread(target=self._ended, args=(child.process.pid,), daemon=True).start()
        child.process, child.again_at = None, now + child.pause
        child.pause = min(max(1.0, 2 * child.pause), LONGEST_PAUSE_SECONDS)

    def _check(self, child: _Child, process: subprocess.Popen[bytes], now: float) -> None:
        if self._pulse is None:
            return
        beat = self._pulse(process.pid)
        if beat != child.beat:
            child.beat, child.beat_at = beat, now
        silent = now - child.beat_at
        if silent > (self._silent_seconds if beat else max(self._silent_seconds, START_SECONDS)):
            log.critical("worker %d has sent no heartbeat for %.0f s, killing it", process.pid, silent)
            process.kill()

    def _end_all(self) -> None:
        running = [c.process for c in self._children if c.process is not None and c.process.poll() is None]
        for process in running:
            process.terminate()
            # A stopped process (SIGSTOP) handles SIGTERM only once it continues.
            process.send_signal(signal.SIGCONT)
        deadline = self._clock() + STOP_SECONDS
        for process in running:
            try:
                process.wait(max(0.1, deadline - self._clock()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def stop_on_signals(supervisor: Supervisor) -> None:
    """Let SIGTERM and SIGINT stop the supervisor; call from the main thread."""

    def handle(_: int, __: FrameType | None) -> None:
        supervisor.stop.set()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
