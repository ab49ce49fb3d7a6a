"""How far the clocks of nodes are off, by the steps of the jobs that they share.

The ranks of a synchronous job end each step together. With t_ns the time of node n's first row of step s, in
its own clock:

    d_ns = t_ns - median of t_ms over the nodes m of the job,
    a_n  = median of d_ns over the steps s          [seconds ahead of the job's nodes].

Workers that count their steps independently drift apart, which a clock does not: where the median of
|d_ns - a_n| is not small beside a_n, nothing is concluded of the node. Nor is it where its own ranks, which
have one clock, end their steps far apart: they are not in step. Records of a file are put in order by their
times, and a node that is a minute off would seem to lag by as many steps.

Samples and events of a node follow its steps. Where these show nothing, they follow the offset that its own
samples report.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from slowrank.telemetry import JobSteps, NodeSample, Record
from streams.clock_error import clock_error, measured_error
from streams.columns import FloatArray

Ints = npt.NDArray[np.int64]

Node = tuple[str, str]
"""Cluster and name of a node."""

# Errors from which on times are moved. Chosen: less than half of the five seconds for which a step waits for
# late rows; nodes with a time server are off by milliseconds.
LEAST_SECONDS = 2.0

# Chosen: common steps from which a median passes over two that a node ended by itself.
_LEAST_STEPS = 5

# Chosen: share of its error by which a clock's may vary from step to step. Workers whose steps differ by a
# hundredth are that far apart after twenty.
_STEADY = 0.05

# Chosen: share of its error by which the ranks of one node may end a step apart.
_TOGETHER = 0.5

# Names of nodes in a sentence. Chosen: more are too long to read.
_NAMED = 4


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
    last = np.full_like(first, -np.inf)
    np.maximum.at(last, (line, column), ts)
    apart = first - np.nanmedian(first, axis=1)[:, None]
    error = np.nanmedian(apart, axis=0)
    steady = np.nanmedian(np.abs(apart - error), axis=0) <= _STEADY * np.abs(error)
    together = np.nanmedian(last - first, axis=0) <= _TOGETHER * np.abs(error)
    known = steady & together & (np.isfinite(first).sum(axis=0) >= _LEAST_STEPS)
    yield from zip(nodes.tolist(), np.where(known, error, 0.0).tolist(), strict=True)


def in_cluster_time(records: Sequence[Record], ahead: Mapping[Node, float]) -> list[Record]:
    """Return the records dated by the cluster's clock, each corrected once; step rows are already.

    ``ahead`` is what steps show. Samples and events of other nodes move by the offset that the node reported
    last, those before its first report by that one. A sample that reports one keeps it, for the finding about
    the clock.
    """
    reported = _Reported(records, ahead.keys())
    moved: list[Record] = []
    for record in records:
        node = (record.cluster, record.node)
        seconds = 0.0 if isinstance(record, JobSteps) else ahead.get(node, reported.seconds(node, record.ts))
        if isinstance(record, NodeSample) and clock_error(record):
            record = replace(record, ts=record.ts - seconds, rx_hint=record.ts - seconds)
        elif seconds:
            record = replace(record, ts=record.ts - seconds)
        moved.append(record)
    return moved


class _Reported:
    """What the samples of each node report of its clock, but for the nodes ``known`` by their steps."""

    def __init__(self, records: Iterable[Record], known: Collection[Node]) -> None:
        self._times: defaultdict[Node, list[float]] = defaultdict(list)
        self._errors: defaultdict[Node, list[float]] = defaultdict(list)
        samples = [r for r in records if isinstance(r, NodeSample) and (r.cluster, r.node) not in known]
        for sample in sorted(samples, key=lambda s: s.ts):
            error = measured_error(sample)
            if error is not None:
                self._times[sample.cluster, sample.node].append(sample.ts)
                self._errors[sample.cluster, sample.node].append(error)

    def seconds(self, node: Node, ts: float) -> float:
        """Return how far the clock of ``node`` was ahead as it showed ``ts``."""
        if node not in self._times:
            return 0.0
        return self._errors[node][max(0, bisect_right(self._times[node], ts) - 1)]


def sentences(ahead: Mapping[str, float], jobs: Iterable[Collection[str]]) -> Iterator[str]:
    """Yield what was done about clocks that are off, a sentence for each of the ``jobs`` (names of its
    nodes).

    ``ahead`` has the nodes that are off, by the median of their job. Where that leaves none that is not, no
    clock is known to be right.
    """
    named: set[str] = set()
    for nodes in sorted(map(set, jobs), key=lambda nodes: (-len(nodes), sorted(nodes))):
        off = {name: ahead[name] for name in sorted(nodes - named) if name in ahead}
        named |= nodes
        if off:
            others = len(nodes) - len(nodes & ahead.keys())
            yield _off_from_others(off, others) if others else _apart(off)


def _off_from_others(off: Mapping[str, float], others: int) -> str:
    worst = max(off, key=lambda name: abs(off[name]))
    by, side = f"{abs(off[worst]):,.1f} s", "ahead" if off[worst] > 0 else "behind"
    clocks, nodes = ("that", "other node") if others == 1 else ("those", f"{others} other nodes")
    if len(off) == 1:
        side = "ahead of" if off[worst] > 0 else side
        return (
            f"the clock of {worst} is {by} {side} {clocks} of its job's {nodes}: its times are moved by "
            "that; see to its time server"
        )
    return (
        f"the clocks of {_listed(off)} differ from {clocks} of their job's {nodes}, most that of {worst}, "
        f"which is {by} {side}: the times of each are moved by its difference; see to their time servers"
    )


def _apart(off: Mapping[str, float]) -> str:
    """Return how far apart the clocks of a job are of which each differs from the median."""
    ahead = [name for name, seconds in off.items() if seconds > 0]
    behind = [name for name in off if name not in ahead]
    two = all(_range(off, names) < LEAST_SECONDS for names in (ahead, behind))
    first, last = max(off, key=off.__getitem__), min(off, key=off.__getitem__)
    apart = off[first] - off[last]
    if two:
        apart = float(np.median([off[n] for n in ahead]) - np.median([off[n] for n in behind]))
        clocks = "clock" if len(ahead) == 1 else "clocks"
        are, other = "is" if len(ahead) == 1 else "are", "that" if len(behind) == 1 else "those"
        differ = (
            f"the {clocks} of {_listed(ahead)} {are} {apart:,.1f} s ahead of {other} of {_listed(behind)}"
        )
    else:
        farthest = f"that of {first} is {apart:,.1f} s ahead of that of {last}"
        differ = f"the clocks of all {len(off)} nodes of a job differ, {farthest}"
    return (
        f"{differ}, and which are right is not known: the times of all are moved to their median; "
        "see to their time servers"
    )


def _range(off: Mapping[str, float], names: Collection[str]) -> float:
    """Return how far apart some clocks are, infinite for none."""
    return max(off[n] for n in names) - min(off[n] for n in names) if names else np.inf


def _listed(names: Collection[str]) -> str:
    """Return a few names, or the first one and how many more."""
    first, *more = names
    if len(more) > _NAMED - 1:
        return f"{first} and {len(more)} more"
    return " and ".join((", ".join([first, *more[:-1]]), *more[-1:]))
