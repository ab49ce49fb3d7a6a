"""Step rows of a record, column by column, as the aligner takes them."""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec
import numpy as np
import numpy.typing as npt

from slowrank.telemetry import JobSteps
from slowrank.telemetry.schema import STEP_SCHEMAS, STEP_V1, Block
from streams.columns import columns

COORDS = ("dp", "pp", "tp", "cp", "ep")
SECONDS = ("step", "compute", "wait", "data", "comm", "checkpoint")

NOTES = ("tokens", "loss", "grad_norm", "seq_len_sq_sum")

# Where a loss and a norm stand: only they mean something by being infinite (``NOT_FINITE``).
LOSSES = slice(len(SECONDS) + NOTES.index("loss"), len(SECONDS) + NOTES.index("grad_norm") + 1)

# The last value, which is there where a row of the record has it.
SQUARES = len(SECONDS) + NOTES.index("seq_len_sq_sum")

# The phase label of ranks that generate while others train: their work is like no other rank's, so that only
# the step they share with the others counts.
ROLLOUT = "rollout"

# The columns of what was measured. They follow each other in that order, in every later schema too.
_VALUES = (*(f"{name}_seconds" for name in SECONDS), *NOTES)

# The columns that name the place of a rank. They follow step and time, in every later schema too.
_PLACE = Block(tuple(c for c in STEP_V1.columns if c.kind == "key" and c.name not in ("step", "ts")))

# Bytes of a row's step and time, the first two columns, eight each (``STEP_V1``).
_BEFORE_PLACE = 16

_KEYS = ("rank", "local_rank", "gpu_index", *COORDS)


@dataclass(frozen=True, slots=True)
class Identity:
    """Where a rank runs and which part of the job it is."""

    node: str
    local_rank: int | None
    gpu_index: int | None
    coords: tuple[tuple[str, int], ...]
    model: str

    def is_part_of(self, known: "Identity") -> bool:
        """Whether ``known`` holds all of this: rows may leave out what does not change."""
        return (
            self.node == known.node
            and self.local_rank in (None, known.local_rank)
            and self.gpu_index in (None, known.gpu_index)
            and self.coords in ((), known.coords)
            and self.model in ("", known.model)
        )


class Rows(msgspec.Struct, frozen=True, gc=False):
    """Reports of ranks on steps, n of them: each field has one entry a row.

    ``values`` [seconds + notes, n] are the seconds of ``SECONDS``, then ``NOTES``, as sent; NaN: not read.
    Without the row of ``SQUARES``, none of the ranks reported it.
    """

    steps: Sequence[int]
    ranks: Sequence[int]
    ts: Sequence[float]
    values: npt.NDArray[np.float32]
    identities: Sequence[Identity]

    def __len__(self) -> int:
        return len(self.steps)

    def part(self, start: int, stop: int) -> "Rows":
        """Return the rows from ``start`` to before ``stop``."""
        if start == 0 and stop >= len(self.steps):
            return self
        cut = slice(start, stop)
        return Rows(self.steps[cut], self.ranks[cut], self.ts[cut], self.values[:, cut], self.identities[cut])

    def earlier(self, seconds: float) -> "Rows":
        """Return the rows with times moved back by ``seconds``."""
        return msgspec.structs.replace(self, ts=[ts - seconds for ts in self.ts])


def rows_of(record: JobSteps) -> Rows:
    """Read the rows of a record; those without a step, rank or time are left out."""
    block = STEP_SCHEMAS[record.schema].rows
    count = len(record.rows) // block.row_size
    step_and_ts = struct.unpack_from(f"<{count}q{count}d", record.rows)
    steps, ts = step_and_ts[:count], step_and_ts[count:]
    reported = len(_VALUES) if _VALUES[-1] in block.offsets else SQUARES
    values = np.ndarray((reported, count), np.dtype("<f4"), record.rows, block.offsets[_VALUES[0]][0] * count)
    if record.labels.get("phase") == ROLLOUT:
        values = values.copy()  # those of the record are read-only
        values[1 : len(SECONDS)] = np.nan
    # A node sends the same keys of its ranks with every step: they are looked up, not read again.
    keys = record.rows[_BEFORE_PLACE * count : (_BEFORE_PLACE + _PLACE.row_size) * count]
    ranks, identities = _places(record.node, record.labels.get("gpu_model", ""), keys)
    rows = Rows(steps, ranks, ts, values, identities)
    return rows if count and _whole(rows) else _only_whole(rows)


def _whole(rows: Rows) -> bool:
    # One NaN or infinity makes the sum one, which is cheaper to see than each of them.
    return min(rows.steps) >= 0 and min(rows.ranks) >= 0 and math.isfinite(sum(rows.ts))


def _only_whole(rows: Rows) -> Rows:
    keys = enumerate(zip(rows.steps, rows.ranks, rows.ts, strict=True))
    kept = [k for k, (step, rank, ts) in keys if step >= 0 and rank >= 0 and math.isfinite(ts)]
    return Rows(
        [rows.steps[k] for k in kept],
        [rows.ranks[k] for k in kept],
        [rows.ts[k] for k in kept],
        rows.values[:, kept],
        [rows.identities[k] for k in kept],
    )


@lru_cache(maxsize=1 << 14)
def _places(node: str, model: str, packed: bytes) -> tuple[tuple[int, ...], tuple[Identity, ...]]:
    """Return rank and identity of each row from the bytes of its key columns."""
    read = columns(_PLACE, packed)
    ranks, *keys = (read[name].tolist() for name in _KEYS)
    return tuple(ranks), tuple(_identity(node, place, model) for place in zip(*keys, strict=True))


@lru_cache(maxsize=1 << 16)
def _identity(node: str, place: tuple[int, ...], model: str) -> Identity:
    local_rank, gpu_index, *coords = (None if value < 0 else value for value in place)
    known = tuple((name, c) for name, c in zip(COORDS, coords, strict=True) if c is not None)
    return Identity(node=node, local_rank=local_rank, gpu_index=gpu_index, coords=known, model=model)
