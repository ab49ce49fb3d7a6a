"""Share of healthy steps of a job that are far off, and so how surprising some in a row are.

Sees what neither ``intermittence`` nor ``rotating_slowness`` can: how often far steps occur on ranks that are
healthy, which limits what any of them proves.

Collections, recompiles and shards to load hold up one rank for a step or two. Where a job shows that now and
then, a few far steps in a row are no proof of a slow rank; where it never did, three are.

With n healthy steps seen and f of them far, both forgotten over 500 steps, the surprise of a far step is
-ln((f + 0.5) / (n + 1)), Jeffreys' estimate of the share (about ln 2 before any step). Runs of far steps
count once they have ended.
"""

import math

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]

# Chosen: far steps in a row that count, as many as a slowdown may take to develop (``llr_cusum.RAMPS``): more
# of them are no spike, but a fault or a change of the job that was explained.
_LONGEST = 32.0

# Chosen: steps over which the past is forgotten, for a job changes what it does.
MEMORY = 500.0


class SpikeRate:
    """Counts healthy steps that were far off, over all ranks of a job.

    Far steps in a row count once they have ended: while they last they may be a fault, which must not
    make itself usual. Those of slow ranks never count.
    """

    def __init__(self, ranks: int) -> None:
        self._pending = np.zeros(ranks)
        self._seen = self._far = 0.0

    def update(self, far: Bools, *, read: Bools, slow: Bools) -> None:
        """Take a step: which ranks were ``far`` off, ``read`` at all, and ``slow`` before it, [ranks]."""
        keep = math.exp(-1.0 / MEMORY)
        ended = read & ~far
        counted = ended & ~slow
        were_far = float(self._pending[counted].sum())
        self._seen = keep * self._seen + (np.count_nonzero(counted) + were_far)
        self._far = keep * self._far + were_far
        self._pending = np.where(ended | slow, 0.0, np.minimum(self._pending + (read & far), _LONGEST))

    @property
    def any(self) -> bool:
        """Whether any healthy step was far off."""
        return self._far > 0.0

    @property
    def surprise(self) -> float:
        """Return -ln of the share of healthy steps that are far off (Jeffreys' estimate; ln 2 before any).

        >>> spikes = SpikeRate(2)
        >>> none, all = np.zeros(2, dtype=bool), np.ones(2, dtype=bool)
        >>> for _ in range(50):
        ...     spikes.update(none, read=all, slow=none)
        >>> round(math.exp(-spikes.surprise), 3)
        0.005
        """
        return math.log((self._seen + 1.0) / (self._far + 0.5))
