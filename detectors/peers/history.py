"""The last steps of a job, as arrays in time order."""

from collections.abc import Callable, Collection, Hashable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Reals = npt.NDArray[np.floating]
Ints = npt.NDArray[np.intp]
T = TypeVar("T")

# Rows that there is room for at first; room doubles until it holds the whole window. Chosen: a job of a few
# steps then takes a twentieth of what one with a full window of 256 does.
_FIRST_ROWS = 16

# Chosen: beyond the window there is room for a quarter of it; only when that is used up are rows moved to the
# front. A row is thus written once and moved four times in its life, of all series at once; twice the window
# would spare two of the moves for 60 % more memory.
_SPARE = 4


def rows_at_most(capacity: int) -> int:
    """Return for how many rows a history of ``capacity`` has room once it is full."""
    return capacity + max(1, capacity // _SPARE)


class History:
    """The last ``capacity`` rows of each named series; memory, ``nbytes`` of it, is taken as rows come.

    Series of ``single`` are kept in single precision, which is what step times are sent in: their relative
    error of 6e-8 is far below any noise of step times (0.5 %). They are computed on in double precision.

    >>> history = History(3, 1, ("x",))
    >>> for n in range(5):
    ...     history.push(x=float(n))
    >>> history.last("x", 2).ravel().tolist()
    [3.0, 4.0]
    """

    def __init__(
        self, capacity: int, width: int, names: tuple[str, ...], *, single: Collection[str] = ()
    ) -> None:
        self.capacity = capacity
        self.count = 0
        self._most = rows_at_most(capacity)
        self._size = min(_FIRST_ROWS, self._most)
        self._end = 0
        self._rows: dict[str, npt.NDArray[np.floating]] = {
            name: np.empty((self._size, width), np.float32 if name in single else np.float64)
            for name in names
        }
        self._kept: dict[Hashable, Any] = {}
        self.nbytes = self._count()

    def push(self, **rows: Floats | float) -> None:
        """Append one row to every series; each must be given."""
        self._kept.clear()
        if self._end == self._size:
            self._make_room()
        for name, held in self._rows.items():
            held[self._end] = rows[name]
        self._end += 1
        self.count += 1

    def last(self, name: str, steps: int) -> Floats:
        """Return the last rows [<= steps, width], oldest first, as an array of the caller's own."""
        return self.view(name, steps).astype(np.float64)

    def columns(self, name: str, steps: int, which: int | slice | Ints) -> Floats:
        """Return ``last`` of some columns alone, [<= steps, columns]; of a single one, [<= steps]."""
        return self.view(name, steps)[:, which].astype(np.float64)

    def view(self, name: str, steps: int) -> Reals:
        """Return the last rows as they are held, to be read at once: rows to come may change them."""
        have = min(steps, self.count, self.capacity)
        return self._rows[name][self._end - have : self._end]

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what ``make`` does of the rows held, and keep it for ``key`` until they change: many ranks
        ask for the same in one step."""
        if key not in self._kept:
            self._kept[key] = make()
        made: T = self._kept[key]
        return made

    def overwrite(self, **rows: Floats) -> None:
        """Replace the last rows of some series by ``rows`` [<= capacity, width], oldest first."""
        self._kept.clear()
        for name, values in rows.items():
            self._rows[name][self._end - len(values) : self._end] = values

    def __getstate__(self) -> dict[str, Any]:
        """Return what a snapshot holds: not what is derived from it."""
        return {**self.__dict__, "_kept": {}}

    def _make_room(self) -> None:
        kept = min(self._end, self.capacity)
        self._size = min(2 * self._size, self._most)
        # One series after the other, so that no more than one is held twice.
        for name, held in self._rows.items():
            room = held if len(held) == self._size else np.empty((self._size, held.shape[1]), held.dtype)
            room[:kept] = held[self._end - kept : self._end]
            self._rows[name] = room
        self._end, self.nbytes = kept, self._count()

    def _count(self) -> int:
        return sum(rows.nbytes for rows in self._rows.values())
