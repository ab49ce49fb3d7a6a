"""Fits the healthy region of nodes to recorded telemetry, with node and cluster stage in one process."""

import math
from collections.abc import Iterable, Iterator

import numpy as np

from detectors.node.gray_envelope import Envelope, fit_envelope
from slowrank.telemetry import MinuteMeans, NodeSample, Record
from streams.cluster.gray_windows import Windows
from streams.gray_features import FEATURES
from streams.node.minute_means import MinuteSums
from streams.watermark import Watermark


def fit(records: Iterable[Record]) -> Envelope:
    """Fit the healthy region to recorded telemetry without faults. Raises as ``fit_envelope``."""
    windows, found = Windows(), [np.zeros((0, len(FEATURES)))]
    for minute in _minutes(records):
        windows.add(minute)
        # The minute before it is complete.
        found += [window.z for window in windows.due(minute.start)]
    found += [window.z for window in windows.due(math.inf)]
    return fit_envelope(np.concatenate(found), FEATURES)


def _minutes(records: Iterable[Record]) -> Iterator[MinuteMeans]:
    sums, watermark, second = MinuteSums(), Watermark(), list[NodeSample]()
    for record in records:
        if isinstance(record, NodeSample):
            if passed := watermark.advance(record.ts):
                sums.take(second)
                second.clear()
                yield from sums.tick(passed[-1])
            second.append(record)
    sums.take(second)
    yield from sums.tick(math.inf)
