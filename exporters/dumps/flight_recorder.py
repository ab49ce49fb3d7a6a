"""A dump of PyTorch's flight recorder: the last collectives, sends and receives that one rank has issued.

Format 2.x of ``FlightRecorder.hpp`` (torch.distributed), as PyTorch 2.5 and newer write it on a timeout or on
request: a pickle of dicts, lists, strings and numbers, or the same as JSON.
"""

import io
import json
import math
import pickle
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporters.dumps.file import BadDump, read_file

# ``nccl:send 0->1`` and ``nccl:recv 0<-1``: the rank itself, and its peer within the group.
_PAIRWISE = re.compile(r"(?P<own>\d+)(?:->|<-)(?P<peer>\d+)")


@dataclass(frozen=True, slots=True)
class Issued:
    """One operation in the order of issue.

    ``number`` counts the collectives of its ``group``, or its sends and receives; ``peer`` is the other rank
    of a send or receive, by its number in the job. ``elements`` are those of its input; ``caller`` is the
    line of the training code.
    """

    group: str
    number: int
    operation: str
    elements: int
    started: bool
    done: bool
    peer: int | None = None
    caller: str = ""


@dataclass(frozen=True, slots=True)
class Dump:
    """What one rank has recorded; ``groups`` are its process groups with the ranks of the job in each."""

    rank: int
    groups: Mapping[str, tuple[int, ...]]
    issued: tuple[Issued, ...]


def read_dump(path: Path) -> Dump:
    """Read a dump. Raises ``BadDump`` and ``OSError``."""
    return read_trace(*read_file(path))


def read_trace(rank: int, data: bytes) -> Dump:
    """Read what ``rank`` has recorded. Raises ``BadDump``."""
    try:
        return _dump(rank, _decoded(data))
    except BadDump:
        raise
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        raise BadDump(f"no dump of the flight recorder: {type(error).__name__} {error}"[:200]) from error


class _Plain(pickle.Unpickler):
    """Reads numbers, strings, lists and dicts alone: anything else in a pickle may run code."""

    def find_class(self, module: str, name: str) -> Any:
        raise BadDump(f"it holds {module}.{name}, which no dump does")


def _decoded(data: bytes) -> Any:
    if data.lstrip()[:1] == b"{":
        return json.loads(data)
    try:
        return _Plain(io.BytesIO(data)).load()
    except (pickle.UnpicklingError, EOFError, MemoryError, OverflowError) as error:
        raise BadDump(f"neither a whole pickle nor JSON: {error}"[:200]) from error


def _dump(rank: int, read: Any) -> Dump:
    groups = {str(name): _ranks(group["ranks"]) for name, group in read["pg_config"].items()}
    issued = (_issued(entry, groups) for entry in read.get("entries", ()))
    # The entry of a batch of sends and receives names no peer, and each of them has its own.
    kept = (one for one, entry in zip(issued, read.get("entries", ()), strict=True) if _whole(one, entry))
    return Dump(rank, groups, tuple(kept))


def _whole(one: Issued, entry: Mapping[str, Any]) -> bool:
    return one.peer is not None or not entry["is_p2p"]


def _ranks(text: Any) -> tuple[int, ...]:
    """Read the ranks of a group, ``[0, 1]`` as text or as a list."""
    return tuple(json.loads(text)) if isinstance(text, str) else tuple(map(int, text))


def _issued(entry: Mapping[str, Any], groups: Mapping[str, Sequence[int]]) -> Issued:
    group, name, pairwise = (
        str(entry["process_group"][0]),
        str(entry["profiling_name"]),
        bool(entry["is_p2p"]),
    )
    state, ends = entry["state"], _PAIRWISE.search(name) if pairwise else None
    members = groups.get(group, ())
    return Issued(
        group=group,
        number=int(entry["p2p_seq_id" if pairwise else "collective_seq_id"]),
        operation=name.partition(":")[2].partition(" ")[0] or name,
        elements=sum(math.prod(map(int, sizes)) for sizes in entry.get("input_sizes", ())),
        started=state in ("started", "completed"),
        done=state == "completed",
        peer=members[int(ends["peer"])] if ends and int(ends["peer"]) < len(members) else None,
        caller=_caller(entry.get("frames", ())),
    )


def _caller(frames: Any) -> str:
    """Return the innermost frame outside PyTorch, empty where frames are missing, as in JSON."""
    if not isinstance(frames, list):
        return ""
    outside = (f for f in frames if "/torch/" not in str(f["filename"]) and "??" not in str(f["filename"]))
    found = next(outside, None)
    return f"{found['filename']}:{found['line']}" if found else ""
