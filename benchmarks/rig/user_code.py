"""What the ranks of both training jobs share: options, and user code that signals make slow or endless."""

from __future__ import annotations

import argparse
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

    @property
    def slow(self) -> bool:
        """Whether SIGUSR1 has come and not come again."""
        return self._slow

    def _toggle(self, *_: object) -> None:
        self._slow = not self._slow

    def _stick(self, *_: object) -> None:
        self._stuck = True


def rank_options(description: str | None) -> argparse.Namespace:
    """Read the command line of a rank."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--addresses", required=True, help="host:port of every rank, with commas between")
    parser.add_argument("--device", type=float, default=0.3, help="device time of a step, seconds")
    parser.add_argument("--extra", type=float, default=0.1, help="what SIGUSR1 adds to a step, seconds")
    return parser.parse_args()
