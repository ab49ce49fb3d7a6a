"""What runs in a step of a training job besides its model, made slow or endless by signals."""

from __future__ import annotations

import signal
import time

FOREVER_SECONDS = 86_400.0


class UserCode:
    """What runs in a step besides the model; signals make it slow, or never end."""

    def __init__(self, extra: float) -> None:
        self._extra, self._slow, self._stuck = extra, False, False
        signal.signal(signal.SIGUSR1, self._toggle)
        signal.signal(signal.SIGUSR2, self._stick)

    def run(self) -> None:
        """Sleep as long as the signals so far demand."""
        if self._stuck:
            time.sleep(FOREVER_SECONDS)
        if self._slow:
            time.sleep(self._extra)

    def _toggle(self, *_: object) -> None:
        self._slow = not self._slow

    def _stick(self, *_: object) -> None:
        self._stuck = True
