"""The last steps of a job, as arrays in time order."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class History:
    """A ring of the last ``capacity`` rows of each named series, readable as one contiguous view.

    Every row is written twice, half a buffer apart, so that the last n rows never wrap around.
    """

    def __init__(self, capacity: int, width: int, names: tuple[str, ...]) -> None:
        self.capacity = capacity
        self.count = 0
        self._rows = {name: np.full((2 * capacity, width), np.nan) for name in names}

    def push(self, **rows: Floats | float) -> None:
        """Append one row to every series; each must be given."""
        slot = self.count % self.capacity
        for name, buffer in self._rows.items():
            buffer[slot] = buffer[slot + self.capacity] = rows[name]
        self.count += 1

    def last(self, name: str, steps: int) -> Floats:
        """Return the last rows [<= steps, width], oldest first; a view that the next push may overwrite."""
        have = min(steps, self.count, self.capacity)
        end = (self.count - 1) % self.capacity + 1 + self.capacity
        return self._rows[name][end - have : end]

    def overwrite(self, **rows: Floats) -> None:
        """Replace the last rows of some series by ``rows`` [steps, width], oldest first."""
        for name, values in rows.items():
            for age, row in enumerate(values[::-1]):
                slot = (self.count - 1 - age) % self.capacity
                self._rows[name][slot] = self._rows[name][slot + self.capacity] = row
