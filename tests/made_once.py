"""What every process of a test run needs, and one of them makes."""

import fcntl
import os
import pickle
from collections.abc import Callable
from typing import Any

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[], Any]) -> Any:
    """Return ``make()``, called by the first process that asks for ``name``; the others read its pickle."""
    folder = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    made = folder / f"{name}.pickle"
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            made.write_bytes(pickle.dumps(make()))
        return pickle.loads(made.read_bytes())
