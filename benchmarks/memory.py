"""Memory of the process that measures itself."""

import gc
import os
import resource
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")


def peak_mb() -> float:
    """Return the most resident memory that this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def resident_mb() -> float:
    """Return the resident memory of this process after a collection, in MB."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE / 1e6
