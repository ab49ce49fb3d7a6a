"""How far the clocks of nodes are off, by the steps of the jobs that they share.

The ranks of a synchronous job end each step together. With t_ns the time of node n's first row of step s, in
its own clock:

    d_ns = t_ns - median of t_ms over the nodes m of the job,
    a_n  = median of d_ns over the steps s          [seconds ahead of the job's nodes].

Workers that count their steps independently drift apart, which a clock does not: where the median of
|d_ns - a_n| is not small beside a_n, nothing is said of the node. Records of a file are put in order by their
times, and a node that is a minute off would seem to lag by as many steps.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from streams.columns import FloatArray

Ints = npt.NDArray[np.int64]

# Errors from which on times are moved. Chosen: less than half of the five seconds for which a step waits for
# late rows; nodes with a time server are off by milliseconds.
LEAST_SECONDS = 2.0

# Chosen: common steps from which a median passes over two that a node ended by itself.
_LEAST_STEPS = 5

# Chosen: share of its error by which a clock's may vary from step to step. Workers whose steps differ by a
# hundredth are that far apart after twenty.
_STEADY = 0.05


def clocks_ahead(run: Ints, node: Ints, step: Ints, ts: FloatArray) -> dict[int, float]:
    """Return by how many seconds the clock of each node in ``node`` is ahead; nodes that are not off lack.

    The arrays [rows] are of step rows: ``run`` numbers the attempts of jobs, ``ts`` is when the step ended.
    Of a node that was part of several runs the one with most rows counts.
    """
    ahead: dict[int, float] = {}
    order = np.argsort(run, kind="stable")
    runs = np.split(order, np.flatnonzero(np.diff(run[order])) + 1)
    for rows in sorted(runs, key=len):
        ahead |= dict(_ahead_in_run(node[rows], step[rows], ts[rows]))
    return {number: seconds for number, seconds in ahead.items() if abs(seconds) >= LEAST_SECONDS}


def _ahead_in_run(node: Ints, step: Ints, ts: FloatArray) -> Iterator[tuple[int, float]]:
    """Yield (node, seconds ahead) of one run; 0 where the node's clock is not known to be off."""
    nodes, column = np.unique(node, return_inverse=True)
    steps, line = np.unique(step, return_inverse=True)
    if len(nodes) < 2:
        return
    first = np.full((len(steps), len(nodes)), np.inf)
    np.minimum.at(first, (line, column), ts)
    first[np.isinf(first)] = np.nan
    apart = first - np.nanmedian(first, axis=1)[:, None]
    error = np.nanmedian(apart, axis=0)
    steady = np.nanmedian(np.abs(apart - error), axis=0) <= _STEADY * np.abs(error)
    known = steady & (np.isfinite(first).sum(axis=0) >= _LEAST_STEPS)
    yield from zip(nodes.tolist(), np.where(known, error, 0.0).tolist(), strict=True)


def sentence(ahead: Mapping[str, float]) -> str:
    """Return what was done about clocks, by the names of their nodes."""
    worst = max(ahead, key=lambda name: abs(ahead[name]))
    others = f" and {len(ahead) - 1} more" if len(ahead) > 1 else ""
    side = "ahead of" if ahead[worst] > 0 else "behind"
    return (
        f"the clock of {worst}{others} is {abs(ahead[worst]):,.1f} s {side} those of its job's other nodes: "
        "its times are moved by that; see to its time server"
    )
