"""A neighbour on the machine: processes that copy memory, as noise without a fault."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.rig.installation import Installation

# Far above the caches, so that the copies go through memory.
_COPY = "import numpy as np\na = np.ones(1 << 26)\nb = np.empty_like(a)\nwhile True: b[:] = a"


@contextmanager
def neighbour(installation: Installation) -> Iterator[None]:
    """Copy memory in as many processes as there are CPUs."""
    processes = [
        installation.spawn([sys.executable, "-c", _COPY], f"neighbour-{n}.log")
        for n in range(os.cpu_count() or 1)
    ]
    try:
        yield
    finally:
        for process in processes:
            process.stop(seconds=2)
