"""How slow each rank was beside its peers; a matrix of such ratios as bytes: u8 codes on a fixed scale."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from store.dashboard.steps import BinValues

Floats = npt.NDArray[np.float32]

# Scale of the codes. Fixed, so that a colour means the same in every job and noise is not drawn as fire (as
# the StragglerAnalysis project's heat maps).
LO, HI = 1.0, 1.5

# Of a byte: the largest code of a value, and the code of a missing one.
TOP_CODE, MISSING = 254, 255

# Codes are multiples of this, ratios of 0.8 %: finer steps are noise, which does not compress.
LEVEL = 4
# Largest cells that are listed with their values (chosen: what a person looks at).
TOP = 200
# Ratio from which a cell is listed: the smallest slowdown that the detectors are measured with.
TOP_RATIO = 1.05


class Heat:
    """A matrix of ratios with ``rows`` by ``columns`` cells, missing until set."""

    def __init__(self, rows: int, columns: int) -> None:
        self._ratios: Floats = np.full((rows, columns), np.nan, dtype=np.float32)

    def add(self, row: int, ratios: npt.ArrayLike, columns: int | slice = slice(None)) -> None:
        """Set cells of one row, NaN for missing; of two values of a cell the larger stays."""
        self._ratios[row, columns] = np.fmax(self._ratios[row, columns], ratios)

    def shown(self) -> dict[str, Any]:
        """Return the encoding, the bytes row by row, and the largest cells, the largest first."""
        return {
            "encoding": "u8-linear",
            "lo": LO,
            "hi": HI,
            "missing": MISSING,
            "data": base64.b64encode(self._codes().tobytes()).decode(),
            "top": [
                [int(row), int(column), round(float(self._ratios[row, column]), 4)]
                for row, column in self._largest()
            ],
        }

    def _codes(self) -> npt.NDArray[np.uint8]:
        missing = np.isnan(self._ratios)
        level = np.clip((self._ratios - LO) * (TOP_CODE / LEVEL / (HI - LO)), 0, TOP_CODE // LEVEL)
        level[missing] = 0
        codes: npt.NDArray[np.uint8] = (np.rint(level) * LEVEL).astype(np.uint8)
        codes[missing] = MISSING
        return codes

    def _largest(self) -> npt.NDArray[np.intp]:
        slow = np.argwhere(self._ratios >= TOP_RATIO)
        # Of equal cells the last: stable, and the same for the same matrix.
        order = np.argsort(self._ratios[slow[:, 0], slow[:, 1]], kind="stable")[::-1]
        return slow[order[:TOP]]


def ratios(found: Sequence[BinValues], stages: Mapping[int, int], bins: int) -> dict[int, Floats]:
    """Return by rank its mean in each bin over the median of its peers there, NaN where it has none.

    Peers of a rank are those of its pipeline stage in ``stages``, as stages have different work; ranks that
    are not there are one stage.
    """
    ranks, means = _means(found, bins)
    stage = np.array([stages.get(rank, -1) for rank in ranks])
    for peers in np.unique(stage):
        of_stage = stage == peers
        means[of_stage] /= _medians(means[of_stage])
    return dict(zip(ranks, means, strict=True))


def _means(found: Sequence[BinValues], bins: int) -> tuple[list[int], Floats]:
    """Return the ranks that have a positive value, and the mean of each in each bin."""
    values = np.frombuffer(b"".join(one.values for one in found), dtype=">f8").astype(np.float64)
    ranks = np.frombuffer(b"".join(one.ranks for one in found), dtype=">i4").astype(np.int32)
    counts = np.array([len(one.values) // 8 for one in found], dtype=np.intp)
    cols = np.repeat(np.array([one.col for one in found], dtype=np.intp), counts)
    numbers, rows = np.unique(ranks[values > 0], return_inverse=True)
    cells = rows * bins + cols[values > 0]
    seen = np.bincount(cells, minlength=len(numbers) * bins)
    sums = np.bincount(cells, weights=values[values > 0], minlength=len(numbers) * bins)
    means: Floats = np.full(len(numbers) * bins, np.nan, dtype=np.float32)
    np.divide(sums, seen, out=means, where=seen > 0, casting="same_kind")
    return numbers.tolist(), means.reshape(len(numbers), bins)


def _medians(means: Floats) -> Floats:
    """Return the median of each column without its NaN; NaN where it has nothing else."""
    # np.nanmedian goes through the columns one by one as soon as there is a NaN.
    ordered = np.sort(means, axis=0)
    counts = np.count_nonzero(~np.isnan(means), axis=0)
    low, high = np.maximum(counts - 1, 0) // 2, np.minimum(counts // 2, len(means) - 1)
    middle = [np.take_along_axis(ordered, at[np.newaxis], axis=0)[0] for at in (low, high)]
    medians: Floats = (middle[0] + middle[1]) / 2
    return medians
