"""Which snapshots a process may take: those of the same code, libraries and settings.

A state has no format of its own: it is what the classes of one version hold. So nothing is converted; a
worker of another version reads the log, as without snapshots.
"""

import hashlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import msgspec
import numpy as np

from streams.config.settings import Tuning

PACKAGES = ("alerts", "detectors", "slowrank", "streams")


def identity(tuning: Tuning, *others: object) -> str:
    """Return a digest of the code, of the tuning, and of ``others`` that the states depend on."""
    found = hashlib.sha256()
    for name, data in _sources():
        found.update(name.encode() + b"\0" + hashlib.sha256(data).digest())
    # The arithmetic of the two kernels differs in the last bits.
    kernel = find_spec("numba") is not None
    found.update(repr((sys.version_info[:3], np.__version__, msgspec.__version__, kernel)).encode())
    found.update(canonical((tuning.base, tuning.layers, others)).encode())
    return found.hexdigest()


def canonical(value: object) -> str:
    """Return settings as a text that is equal for equal settings, in every process."""
    if is_dataclass(value) and not isinstance(value, type):
        parts = (f"{f.name}={canonical(getattr(value, f.name))}" for f in fields(value))
        return f"{type(value).__name__}({','.join(parts)})"
    if isinstance(value, Mapping):
        return f"{{{','.join(sorted(f'{canonical(k)}:{canonical(v)}' for k, v in value.items()))}}}"
    if isinstance(value, set | frozenset):
        # Texts are hashed differently in every process.
        return f"{{{','.join(sorted(map(canonical, value)))}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(canonical, value))}]"
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
    return repr(value)


def _sources() -> Iterator[tuple[str, bytes]]:
    for package in PACKAGES:
        for folder in import_module(package).__path__:
            for path in sorted(Path(folder).rglob("*.py")):
                yield f"{package}/{path.relative_to(folder)}", path.read_bytes()
