"""What every process of a test run needs, and one of them makes."""

import fcntl
import os
import pickle
import time
from collections.abc import Callable
from typing import Any

import pytest

# Age up to which it serves others. Chosen: records that are ten minutes old when they are sent lead to other
# suspicions, which have expired by then.
FRESH_SECONDS = 180.0


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[], Any]) -> Any:
    """Return ``make()`` of the first process that asks for ``name``; while it is fresh the others read it."""
    folder = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    made = folder / f"{name}.pickle"
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists() or time.time() - made.stat().st_mtime > FRESH_SECONDS:
            made.write_bytes(pickle.dumps(make()))
        return pickle.loads(made.read_bytes())
