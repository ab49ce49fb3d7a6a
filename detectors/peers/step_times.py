"""The times of one step of a job's ranks: what of them is compared, and what is left beside it.

A rank's own work is what it computes, or what its waits or transfers leave of its step. The rest is what it
does beside what it reports, within its step and since the end of the one before. Arrays are [ranks]; NaN was
not read.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from detectors.peers.peers import MIN_PEERS
from detectors.robust import nan_median

Floats = npt.NDArray[np.float64]

Source = Literal["compute", "outside_transfers", "step"]
"""What is compared of each rank: its own work; what transfers leave of its step; the step itself."""

# Places among the times between steps, ascending, of what most ranks take, and the share of a step that these
# may be apart for the times to be compared. Chosen: a node of a job of two leaves the other half alike; what
# is beside the work is noisier than the work itself (0.5 %), but times rounded to a tenth of a step show
# nothing.
_MOST_BETWEEN, _EVEN_BETWEEN = (0.1, 0.4), 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """One step: event times ``ts`` and seconds, each [ranks]; NaN = not read.

    ``squares`` are the sums of the squared lengths of each rank's sequences, None where no rank reports them.
    ``numbered``: a number is the same step on all ranks, and the next one is the next step.
    """

    number: int
    ts: Floats
    step: Floats
    compute: Floats
    wait: Floats
    data: Floats
    comm: Floats
    checkpoint: Floats
    tokens: Floats
    squares: Floats | None = None
    numbered: bool = True


def compared(t: StepTimes) -> tuple[Source, Floats]:
    """Choose what is compared: compute, else the step without its waits, or its transfers, else the step.

    Steps of ranks that wait for each other last as long on each, so that the compute of a few, who have peers
    among themselves, says more.
    """
    half, computing = np.isfinite(t.step).sum() / 2, np.isfinite(t.compute).sum()
    if computing >= half:
        return "compute", t.compute
    # What is neither waiting nor loading nor saving is the rank's own work.
    if np.isfinite(t.wait).sum() >= half:
        return "compute", t.step - t.wait - np.nan_to_num(t.data) - np.nan_to_num(t.checkpoint)
    if computing > MIN_PEERS:
        return "compute", t.compute
    # Where no rank reports its waiting, transfers mostly contain it. Where they do not, what they leave is as
    # long on all ranks.
    if np.isfinite(t.comm).sum() >= half:
        return "outside_transfers", seconds_of("outside_transfers", t)
    return "step", t.step


def seconds_of(source: Source, t: StepTimes) -> Floats:
    """Return what is compared of a step where it is ``source``, also where few ranks report it, [ranks]."""
    if source == "outside_transfers":
        return t.step - t.comm - np.nan_to_num(t.data) - np.nan_to_num(t.checkpoint)
    return t.compute if source == "compute" else t.step


def rest_of(t: StepTimes) -> Floats:
    """Return what is left of each rank's step beside work, loading, saving and waiting, [ranks].

    Transfers are in it where waits are reported: a rank whose own transfers are long holds up all others.
    Where they are not, transfers are taken off too, for the waiting is then within them. NaN where ranks
    report neither compute nor where they wait: what is left is then their waiting.
    """
    half = t.step.size / 2
    waits = max(np.isfinite(t.wait).sum(), np.isfinite(t.comm).sum())
    if (t.compute > 0).sum() < half or waits < half:
        return np.full(t.step.size, np.nan)
    idle = np.where(np.isfinite(t.wait), t.wait, t.comm)
    rest: Floats = t.step - t.compute - sum(np.fmax(part, 0.0) for part in (idle, t.data, t.checkpoint))
    return rest


def since_last(ended: tuple[int, Floats] | None, t: StepTimes) -> Floats:
    """Return the time of each rank between its last step and this one, (ts - ts of that one) - step, [ranks];
    NaN where the step before, which ``ended`` at these times, is not at hand."""
    if ended is None or not t.numbered or t.number != ended[0] + 1:
        return np.full(t.step.size, np.nan)
    between: Floats = t.ts - ended[1] - t.step
    return between


def busy_between(between: Floats, t: StepTimes) -> Floats:
    """Return how long each rank was busy ``between`` its last step and this one, [ranks]: where it loads data
    outside of its steps, the others wait for it within theirs.

    Zero where it is not known, and on all ranks where the times of the many that are least busy do not
    agree: then ``ts`` is not when the step ended, or coarse. What all ranks share, as an evaluation, makes
    none differ from its peers.
    """
    none = np.zeros(t.step.size)
    known = between[np.isfinite(between)]
    if not known.size:
        return none
    least, most = np.quantile(known, _MOST_BETWEEN)
    # Negated: without the time of a step nothing is even.
    if not most - least <= _EVEN_BETWEEN * nan_median(t.step):
        return none
    return np.fmax(between, none)


def logs(seconds: Floats) -> Floats:
    """Return the logs of ``seconds``; NaN where there are none."""
    return np.log(np.where(seconds > 0, seconds, np.nan))
