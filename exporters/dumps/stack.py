"""A dump of py-spy: where the threads of one process are, as text or as JSON (``py-spy dump [--json]``)."""

import json
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from exporters.dumps.file import BadDump

# Where a rank waits for others: files of collectives.
_COLLECTIVES = ("torch/distributed/", "horovod/")

_LIBRARIES = sys.stdlib_module_names | {"torch", "<frozen importlib._bootstrap>", "<string>"}
_LIBRARY_FOLDERS = ("/site-packages/", "/dist-packages/", "/lib/python3.")

_THREAD = re.compile(r'Thread \S+ \([^)]*\)(?:: "(?P<name>.*)")?$')
_FRAME = re.compile(r"\s+(?P<name>.+) \((?P<file>.+):(?P<line>\d+)\)$")


@dataclass(frozen=True, slots=True)
class Frame:
    """A call: of the function ``name``, at a line of a file."""

    name: str
    file: str
    line: int


def is_stack(data: bytes) -> bool:
    """Return whether a file looks like a dump of py-spy."""
    return data.startswith((b"Process ", b"["))


def read_stack(data: bytes) -> tuple[Frame, ...]:
    """Return the frames of the main thread, the innermost first. Raises ``BadDump``."""
    try:
        threads = _of_json(data) if data.startswith(b"[") else _of_text(data.decode())
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise BadDump(f"no dump of py-spy: {type(error).__name__} {error}"[:200]) from error
    found = threads.get("MainThread")
    if not found:
        raise BadDump("no main thread with Python frames in the dump of py-spy")
    return tuple(found)


def waits(frames: Iterable[Frame]) -> bool:
    """Return whether the frames are in a collective."""
    return any(name in frame.file for frame in frames for name in _COLLECTIVES)


def line_of(frames: Iterable[Frame]) -> str:
    """Return the line of the training code: the innermost frame that is of no library."""
    calls = tuple(frames)
    found = next((frame for frame in calls if not _is_library(frame.file)), calls[0])
    return f"{found.file}:{found.line} in {found.name}"


def _is_library(file: str) -> bool:
    # As text it is a path below the one that Python searches, as JSON a whole path.
    first, _, _ = file.removesuffix(".py").partition("/")
    return any(folder in file for folder in _LIBRARY_FOLDERS) or first in _LIBRARIES


def _of_json(data: bytes) -> Mapping[str, list[Frame]]:
    return {
        str(thread["thread_name"]): [_frame(f["name"], f["filename"], f["line"]) for f in thread["frames"]]
        for thread in json.loads(data)
    }


def _of_text(text: str) -> Mapping[str, list[Frame]]:
    found: dict[str, list[Frame]] = {}
    frames: list[Frame] = []
    for line in text.splitlines():
        if thread := _THREAD.match(line):
            frames = found.setdefault(thread["name"] or "", [])
        elif frame := _FRAME.match(line):
            frames.append(_frame(frame["name"], frame["file"], frame["line"]))
    return found


def _frame(name: Any, file: Any, line: Any) -> Frame:
    return Frame(str(name), str(file), int(line))
