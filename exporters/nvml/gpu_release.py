"""The switch by which an operator has the exporter let go of the GPUs for a while: a file.

A driver neither resets a GPU nor unloads while any process has ``/dev/nvidia*`` open, and the children that
read the GPUs do.
"""

from pathlib import Path

DEFAULT_SECONDS = 600.0
"""For how long an empty file holds: a reset takes less than a minute, loading the driver anew a few."""
MAX_SECONDS = 86_400.0
"""Limit on the effect of a forgotten file. Chosen."""


def released(path: Path, wall: float) -> bool:
    """Return whether the GPUs are to be let go at ``wall`` (Unix seconds).

    The file at ``path`` holds the seconds from its last change for which they are, none for
    ``DEFAULT_SECONDS``. What is no number of seconds counts as none. A change that lies as far ahead, made
    before the clock was set back, holds no more; nor does what is no file, and may never end.
    """
    try:
        if not path.is_file():
            return False
        changed, text = path.stat().st_mtime, path.read_text(errors="replace")[:32].strip()
    except OSError:
        return False
    try:
        seconds = float(text or DEFAULT_SECONDS)
    except ValueError:
        seconds = DEFAULT_SECONDS
    return abs(wall - changed) < min(seconds, MAX_SECONDS)
