"""Reads keys of the terminal as they are pressed."""

import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def pressed_keys() -> Iterator[Callable[[], str]]:
    """Yield a function that returns the keys pressed since its last call.

    None are ever pressed where standard input is not the terminal in whose foreground this process runs.
    """
    if not sys.stdin.isatty() or not _in_foreground(sys.stdin.fileno()):
        yield lambda: ""
        return
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    # Keys without Enter; Ctrl-C stays a signal.
    tty.setcbreak(terminal)
    try:
        yield lambda: _waiting(terminal)
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _in_foreground(terminal: int) -> bool:
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        # Not the terminal that controls this process.
        return False


def _waiting(terminal: int) -> str:
    ready, _, _ = select.select([terminal], [], [], 0)
    return os.read(terminal, 64).decode("utf-8", "replace") if ready else ""
