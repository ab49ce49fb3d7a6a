"""How low the clock of a node is, beside that of other nodes with the same work.

What all GPUs of a node share, such as a locked clock or a lower power limit, no comparison within the node
shows. Other nodes of the same job with GPUs of the same model do: they do the same work at the same time.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

# Chosen, of the peers' median: four of the 15 MHz in which clocks are read. No evidence by itself, as GPUs
# at their power limit may differ by as much.
LOW = 0.96

# Chosen, of the peers' median: GPUs of one model at their power limit differ by less, as a rule (some 8 %:
# Sinha et al., "Not All GPUs Are Created Equal", SC22).
CAPPED, FAR = 0.92, 0.85

# Of the peers' median. Chosen: power limits are settings, and do not differ by chance.
LOW_LIMIT = 0.95

# Chosen: the median of fewer is the value of one.
LEAST_OTHERS = 3

# Utilisation by which a node may be below the others and still does the same work. Chosen: GPUs that wait in
# a collective count as used, so that those of one job differ by some hundredths.
LESS_WORK = 0.1


@dataclass(frozen=True, slots=True)
class Comparison:
    """Each node beside the median of the others, [nodes]: what that is, and whether it works as much."""

    usual_clock: Floats
    usual_limit: Floats
    works: Mask


def compare(clock: Floats, limit: Floats, utilization: Floats) -> Comparison | None:
    """Compare nodes [nodes] with each other; None where there are fewer than three others.

    ``limit`` is NaN where it was not read; it is compared where it is known of all.
    """
    if len(clock) <= LEAST_OTHERS:
        return None
    known = np.isfinite(limit).all()
    return Comparison(
        median_of_others(clock),
        median_of_others(limit) if known else np.full(len(limit), np.nan),
        utilization >= median_of_others(utilization) - LESS_WORK,
    )


def below_others(values: Floats, share: float) -> Mask:
    """Return which values [nodes, devices] are below the median of at least three others of their node, times
    ``share``; NaN: not read."""
    below: Mask = values < share * np.fmax.reduce(values, axis=1, initial=0.0)[:, None]
    # Hardly any is far below even the highest of its node.
    for k in np.flatnonzero(below.any(axis=1)).tolist():
        read = np.isfinite(values[k])
        row, below[k] = values[k, read], False
        if len(row) > LEAST_OTHERS:
            below[k, read] = row < share * median_of_others(row)
    return below


def median_of_others(values: Floats) -> Floats:
    """Return for each of at least two values the median of the others.

    Without a value up to the middle of the sorted ones, the next one is in the middle.

    >>> median_of_others(np.array([1.0, 2.0, 4.0, 8.0])).tolist()
    [4.0, 4.0, 2.0, 2.0]
    """
    ordered = np.sort(values)
    place = np.argsort(np.argsort(values, kind="stable"), kind="stable")
    low, high = (len(values) - 2) // 2, (len(values) - 1) // 2
    middle: Floats = 0.5 * (ordered[low + (place <= low)] + ordered[high + (place <= high)])
    return middle
