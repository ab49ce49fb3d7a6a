"""Release of the GPUs on request of an operator, by a file.

The driver neither resets a GPU nor unloads while any process has ``/dev/nvidia*`` open, as the children that
read the GPUs do.
"""

from pathlib import Path

# Validity of an empty file. Chosen: a reset takes less than a minute, a reload of the driver a few.
DEFAULT_SECONDS = 600.0
# Limit on the effect of a forgotten file. Chosen: a day.
MAX_SECONDS = 86_400.0


def released(path: Path, wall: float) -> bool:
    """Return whether the GPUs are to be released at ``wall`` (Unix seconds).

    The file at ``path`` contains for how many seconds after its modification they are; without a number it is
    ``DEFAULT_SECONDS``. A modification time that lies as far in the future, from before the clock was set
    back, has no effect, nor has anything but a regular file, which might block the read.
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
