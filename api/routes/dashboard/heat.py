"""A matrix of ratios as bytes: u8 codes on a fixed scale, base64, and its largest cells as numbers."""

import base64
import heapq
from collections.abc import Iterable
from typing import Any

from store.dashboard.steps import RankRow, Scale

LO, HI = 1.0, 1.5
"""Scale of the codes. Fixed, so that a colour means the same in every job and noise is not drawn as fire
(as the StragglerAnalysis project's heat maps)."""
TOP_CODE, MISSING = 254, 255
LEVEL = 4
"""Codes are multiples of this, ratios of 0.8 %: finer steps are noise, which does not compress."""
TOP = 200
"""Largest cells that are listed with their values (chosen: what a person looks at)."""
TOP_RATIO = 1.05
"""Ratio from which a cell is listed: the smallest slowdown that the detectors are measured with."""

SCALE = Scale(
    lo=LO,
    per_unit=TOP_CODE / LEVEL / (HI - LO),
    level=LEVEL,
    last=TOP_CODE // LEVEL,
    slow=TOP_RATIO,
)


class Heat:
    """A matrix of ``rows`` by ``columns`` cells, missing until set; a cell set twice keeps the larger."""

    def __init__(self, rows: int, columns: int) -> None:
        self.shape = (rows, columns)
        self._codes = bytearray(bytes([MISSING]) * (rows * columns))
        self._slow: dict[tuple[int, int], float] = {}

    def add(self, row: int, rank: RankRow) -> None:
        """Set the cells of one row to those of a rank."""
        self.set(row, rank.cols, rank.codes)
        self.note(row, rank.slow_cols or (), rank.slow_ratios or ())

    def set(self, row: int, columns: Iterable[int], codes: Iterable[int]) -> None:
        """Set cells of one row to codes."""
        held, width, start = self._codes, self.shape[1], row * self.shape[1]
        for column, code in zip(columns, codes, strict=True):
            if 0 <= column < width and (held[start + column] == MISSING or code > held[start + column]):
                held[start + column] = code

    def note(self, row: int, columns: Iterable[int], ratios: Iterable[float]) -> None:
        """List cells of one row with their values."""
        for column, ratio in zip(columns, ratios, strict=True):
            if 0 <= column < self.shape[1] and ratio > self._slow.get((row, column), 0.0):
                self._slow[row, column] = ratio

    def shown(self) -> dict[str, Any]:
        """Return the encoding, the bytes row by row, and the largest cells, the largest first."""
        top = heapq.nlargest(TOP, self._slow.items(), key=lambda cell: (cell[1], cell[0]))
        return {
            "encoding": "u8-linear",
            "lo": LO,
            "hi": HI,
            "missing": MISSING,
            "data": base64.b64encode(self._codes).decode(),
            "top": [[row, column, round(ratio, 4)] for (row, column), ratio in top],
        }


def code_of(ratio: float) -> int:
    """Return the code of a ratio: 0 at ``LO`` or below, the largest at ``HI`` or above."""
    return round(min(SCALE.last, max(0.0, ratio - LO) * SCALE.per_unit)) * LEVEL
