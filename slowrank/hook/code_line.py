"""The line of code that a thread is in, outside of the standard library and installed packages."""

import os
import sys
from types import FrameType

# Chosen: the end of a path says most, and a record bounds it (telemetry.checks.MAX_CODE_LINE).
_MAX = 200

_STDLIB = os.__file__.removesuffix("os.py")
_INSTALLED = ("site-packages", "dist-packages")


def line_of(thread: int) -> str:
    """Return where ``thread`` is, as ``/home/u/train.py:141 in load``; empty where it has ended.

    The innermost frame of the training code, as that of a library is the same on all ranks that wait.
    """
    innermost = frame = sys._current_frames().get(thread)
    while frame is not None and _is_library(frame.f_code.co_filename):
        frame = frame.f_back
    found = frame or innermost
    return "" if found is None else _text(found)[-_MAX:]


def _is_library(file: str) -> bool:
    return file.startswith(("<", _STDLIB)) or any(folder in file for folder in _INSTALLED)


def _text(frame: FrameType) -> str:
    text = f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
    return "".join(c if c.isprintable() else "?" for c in text)
