"""Keeps worker processes running: starts them, starts them again when they end, stops them with itself."""

import logging
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType

log = logging.getLogger(__name__)

LONGEST_PAUSE_SECONDS = 30.0
START_SECONDS = 180.0
"""A worker that has never beaten yet may take so long: it reads minutes of the log again first."""

HEALTHY_AFTER_SECONDS = 60.0
STOP_SECONDS = 20.0


@dataclass(slots=True)
class _Child:
    command: Sequence[str]
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    pause: float = 1.0
    again_at: float = 0.0
    beat: float = 0.0
    heard: float = 0.0


class Supervisor:
    """Runs commands side by side until ``stop`` is set.

    A command that ends is started again after a pause that doubles up to half a minute and is forgotten once
    it ran for a minute. One that lives on without a sign of life for ``silent_seconds`` is killed: ``pulse``
    gives for a process id a number that changes with every sign, 0 before the first.
    """

    def __init__(
        self,
        commands: Sequence[Sequence[str]],
        *,
        pulse: Callable[[int], float] | None = None,
        silent_seconds: float = 120.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._children = [_Child(command) for command in commands]
        self._pulse = pulse
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
                child.beat, child.heard = 0.0, now
            return
        code = child.process.poll()
        if code is None:
            self._listen(child, child.process, now)
            return
        if now - child.started >= HEALTHY_AFTER_SECONDS:
            child.pause = 1.0
        log.warning("worker ended with code %d, starting it again in %.0f s", code, child.pause)
        child.process, child.again_at = None, now + child.pause
        child.pause = min(2 * child.pause, LONGEST_PAUSE_SECONDS)

    def _listen(self, child: _Child, process: subprocess.Popen[bytes], now: float) -> None:
        if self._pulse is None:
            return
        beat = self._pulse(process.pid)
        if beat != child.beat:
            child.beat, child.heard = beat, now
        silent = now - child.heard
        if silent > (self._silent_seconds if beat else max(self._silent_seconds, START_SECONDS)):
            log.critical("worker %d gave no sign of life for %.0f s, killing it", process.pid, silent)
            process.kill()

    def _end_all(self) -> None:
        running = [c.process for c in self._children if c.process is not None and c.process.poll() is None]
        for process in running:
            process.terminate()
            # A process that was stopped would not hear of it.
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
