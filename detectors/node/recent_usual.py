"""Recent and usual values of a ratio of two counters, from exponentially decayed sums."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Rows = slice | npt.NDArray[np.int64]

# Time constant of the recent sums. Chosen: longer than a training step, which may send in one burst, and
# short against the hold of 10 s of the rules.
RECENT_SECONDS = 5.0

# Time constant of the usual sums. Chosen: long against a checkpoint pause, short against a job.
USUAL_SECONDS = 300.0

# Seconds that must have been learned before anything is compared. Chosen: some twenty steps of 3 s.
LEARN_SECONDS = 60.0

# Above so many times the usual ratio, samples are not learned as usual, so that a fault is not learned away.
# Chosen: well below the factor of 10 at which the detectors fire.
CALM = 3.0


class RecentAndUsual:
    """Decayed sums of two quantities by row, once recent and once usual.

    With amounts a_t over the seconds d_t since the row's previous sample,

        recent_t = recent_{t-1} · exp(-d_t / 5 s) + a_t
        usual_t  = usual_{t-1} · f_t + a_t              (only where the caller finds the sample calm)

    with a fading factor f_t that the caller chooses. The ratio of the two sums is a rate (amount per second,
    ticks per byte) that needs no start value: numerator and denominator fade alike.
    """

    def __init__(self, *shape: int) -> None:
        self._recent = np.zeros((2, *shape))
        self._usual = np.zeros((2, *shape))

    def add(self, rows: Rows, amounts: Floats, seconds: Floats) -> tuple[Floats, Floats]:
        """Add ``amounts`` [2, n, ...] to the recent sums of ``rows``; return recent and usual sums."""
        recent = self._recent[:, rows] = self._recent[:, rows] * np.exp(-seconds / RECENT_SECONDS) + amounts
        return recent, self._usual[:, rows]

    def learn(self, rows: Rows, amounts: Floats, fading: Floats) -> None:
        """Add ``amounts`` [2, n, ...] to the usual sums of ``rows``, which fade by factors ``fading``."""
        self._usual[:, rows] = self._usual[:, rows] * fading + amounts

    def reset(self, row: int) -> None:
        """Forget one row."""
        self._recent[:, row] = self._usual[:, row] = 0.0
