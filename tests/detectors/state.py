"""The state of a detector, for tests that compare what two of them hold."""

from collections.abc import Iterator
from typing import Any

import numpy as np


def state(detector: object) -> dict[str, np.ndarray]:
    """Return copies of the arrays and numbers that a detector holds, by the path of their attributes."""
    return dict(_held("", detector))


def same(one: object, other: object) -> bool:
    """Return whether two detectors hold the same, bit for bit."""
    a, b = state(one), state(other)
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k], equal_nan=True) for k in a)


def _held(path: str, value: Any) -> Iterator[tuple[str, np.ndarray]]:
    if isinstance(value, np.ndarray | np.generic | bool | int | float):
        if np.asarray(value).dtype.kind in "fiub":
            yield path, np.array(value)
        return
    if isinstance(value, dict):
        parts = list(value.items())
    elif isinstance(value, list | tuple):
        parts = list(enumerate(value))
    else:
        names = [*getattr(value, "__dict__", ()), *getattr(type(value), "__slots__", ())]
        parts = [(name, getattr(value, name)) for name in names] if type(value).__module__ != "types" else []
    for name, part in parts:
        yield from _held(f"{path}.{name}", part)
