"""A notifier process that is killed (SIGKILL) at random moments and started again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import IO

# A process that delivers nothing for this long has failed to start.
START_SECONDS = 60.0
STOP_SECONDS = 60.0

Lease = tuple[str, datetime]
"""A delivery that is leased, and until when."""


class NotifierProcess:
    """``slowrank notifier run`` with the settings of the run; its log goes to ``log``."""

    def __init__(self, settings: dict[str, str], log: Path) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SLOWRANK_")}
        self._environment = kept | settings
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None

    def start(self) -> None:
        """Start it."""
        self._output = self._log.open("ab")
        program = Path(sys.executable).with_name("slowrank")
        self._process = subprocess.Popen(
            [program, "notifier", "run"],
            env=self._environment,
            cwd=self._log.parent,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
        )

    def kill(self) -> None:
        """End it without a chance to finish anything."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it in order; does nothing when it has ended."""
        if self._process is not None:
            self._end(signal.SIGTERM)

    def check(self) -> None:
        """Raise ``RuntimeError`` with the end of its log when it ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            raise RuntimeError(f"the notifier ended by itself: {self._log.read_text()[-2000:]}")

    def _end(self, how: signal.Signals) -> None:
        assert self._process is not None
        assert self._output is not None
        self._process.send_signal(how)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()
        self._process = None


def kill_at_random(
    notifier: NotifierProcess,
    kills: int,
    *,
    seconds: float,
    chance: random.Random,
    arrived: Callable[[], int],
    leases: Callable[[], set[Lease]],
) -> list[int]:
    """Start and kill the notifier ``kills`` times, each at most ``seconds`` after it began to deliver.

    A fifth of the kills come while it starts, at any moment of its first two seconds. ``arrived`` counts
    requests that receivers took. Returns how many deliveries each kill cut off between lease and result.
    """
    cut: list[int] = []
    known: set[Lease] = set()
    for _ in range(kills):
        before = arrived()
        notifier.start()
        if chance.random() < 0.2:
            time.sleep(chance.uniform(0, 2))
        else:
            _wait_for_work(notifier, before, arrived)
            time.sleep(chance.uniform(0, seconds))
        notifier.check()
        notifier.kill()
        # A lease of before belongs to an earlier kill.
        new = leases() - known
        known |= new
        cut.append(len(new))
    return cut


def _wait_for_work(notifier: NotifierProcess, before: int, arrived: Callable[[], int]) -> None:
    until = time.monotonic() + START_SECONDS
    while arrived() == before and time.monotonic() < until:
        notifier.check()
        time.sleep(0.02)
