"""Activity of the GPUs of one job over time, as a sequence of segments."""

from collections import deque
from dataclasses import dataclass

import numpy as np

from simulator.cluster.activity import Activity
from simulator.cluster.layout import FloatArray
from simulator.faults.condition import BoolArray


@dataclass(frozen=True, slots=True)
class Segment:
    """Activity up to ``until``: shares and process states [nodes, gpus] of the job, bytes a second a NIC."""

    until: float
    compute: FloatArray | float
    wait: FloatArray | float
    running: BoolArray | bool = True
    sent: FloatArray | float = 0.0


class Timeline:
    """The segments of one job in order of time; past ones are dropped."""

    def __init__(self, nodes: range) -> None:
        self._nodes = slice(nodes.start, nodes.stop)
        self._segments: deque[Segment] = deque()

    def add(self, segment: Segment) -> None:
        """Append the next segment."""
        self._segments.append(segment)

    def fill(self, activity: Activity, moments: FloatArray) -> None:
        """Write the activity at ``moments`` [nodes of the cluster], which must not decrease between calls."""
        mine = moments[self._nodes]
        first, last = mine.min(), mine.max()
        while self._segments[0].until <= first:
            self._segments.popleft()
        since = -np.inf
        for segment in self._segments:
            whole = since <= first and last < segment.until
            where = slice(None) if whole else (since <= mine) & (mine < segment.until)
            self._write(activity, segment, where)
            since = segment.until
            if since > last:
                break

    def _write(self, activity: Activity, segment: Segment, where: BoolArray | slice) -> None:
        for target, values in (
            (activity.compute, segment.compute),
            (activity.wait, segment.wait),
            (activity.running, segment.running),
            (activity.sent, segment.sent),
        ):
            mine = target[self._nodes]
            # Nodes of a job that does not run belong to the jobs before and after it.
            if segment.running is False:
                continue
            mine[where] = values[where] if isinstance(values, np.ndarray) else values
