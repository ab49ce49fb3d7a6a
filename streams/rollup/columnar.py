"""Folds the samples of many nodes into their ten-second buckets at once, as columns.

A page is all nodes that carry equally many devices under one schema and have samples for the same bucket.
Turn t takes the t-th sample of each node, so that every aggregate is joined in the order in which the samples
of its node came: the result is that of folding them one by one, bit for bit. A node whose devices change
within the bucket, or with a late sample, is folded one by one.
"""

from collections.abc import Iterable, Sequence
from operator import attrgetter

import numpy as np

from slowrank.telemetry import NodeSample
from slowrank.telemetry.columns import pack
from slowrank.telemetry.schema import MISSING_INT, SAMPLE_SCHEMAS
from slowrank.telemetry.schema import Block as Layout
from store.telemetry.buckets import ROLLED, Block
from streams.columns import Array, FloatArray, as_float, stacked
from streams.rollup.samples import BLOCKS, ROWS, NodeBuckets, Waiting, host_ids, increases, joined

_Own = Sequence[Waiting]
"""The samples of one node for one bucket, in the order in which they came."""


def fold_samples(samples: Iterable[Waiting]) -> None:
    """Fold samples of one bucket of many nodes, in the order in which they came."""
    nodes: dict[NodeBuckets, list[Waiting]] = {}
    for waiting in samples:
        nodes.setdefault(waiting.node, []).append(waiting)
    pages: dict[tuple[int, int, int, bool], list[_Own]] = {}
    for own in nodes.values():
        if _uniform(own):
            sample = own[0].sample
            page = sample.schema, len(sample.gpu_ids), len(sample.nic_ids), bool(sample.host)
            pages.setdefault(page, []).append(own)
        else:
            for waiting in own:
                waiting.node.fold(waiting)
    for alike in pages.values():
        for block in BLOCKS:
            _fold_block(block, alike)


def _uniform(own: _Own) -> bool:
    """Return whether the node has the devices of its first sample throughout, and no late sample."""
    first = own[0].sample
    devices = first.schema, first.gpu_ids, first.nic_ids, bool(first.host)
    for waiting in own:
        sample = waiting.sample
        if waiting.late or (sample.schema, sample.gpu_ids, sample.nic_ids, bool(sample.host)) != devices:
            return False
    sums, readings = own[0].bucket.sums, own[0].node.readings
    held = ((block, _ids(block, first)) for block in BLOCKS)
    return all(not ids or (sums[b].fits(ids) and readings[b].fits(ids)) for b, ids in held)


def _ids(block: Block, sample: NodeSample) -> tuple[str, ...]:
    """Return the instances of a block."""
    return {"gpu": sample.gpu_ids, "nic": sample.nic_ids, "host": host_ids(sample)}[block]


def _fold_block(block: Block, page: Sequence[_Own]) -> None:
    """Fold one block of the samples of a page into the sums and readings of its nodes."""
    ids = [_ids(block, own[0].sample) for own in page]
    if not ids[0]:
        return
    sums = [own[0].bucket.sums[block] for own in page]
    readings = [own[0].node.readings[block] for own in page]
    for i, names in enumerate(ids):
        sums[i].begin(names)
        readings[i].align(names)
    value = np.hstack([s.value for s in sums])
    count = np.hstack([s.count for s in sums])
    last = np.hstack([r.value for r in readings])
    gauges, counters = _turns(block, page)
    for now, read in zip(gauges, counters, strict=True):
        now[ROWS[block]["delta"]], last = increases(last, read)
        value, there = joined(ROWS[block], value, now)
        count += there
    width = len(ids[0])
    for i, own in enumerate(page):
        at = slice(i * width, (i + 1) * width)
        # Copies: a view would keep the arrays of the whole page.
        sums[i].value, sums[i].count = value[:, at].copy(), count[:, at].copy()
        sums[i].samples = [n + len(own) for n in sums[i].samples]
        readings[i].value = last[:, at].copy()


def _turns(block: Block, page: Sequence[_Own]) -> tuple[FloatArray, Array]:
    """Return the readings [turns, rolled columns, nodes x instances], and those of counters alone as int64.

    NaN, or MISSING_INT, where a node has fewer samples than others or its schema lacks the column.
    """
    sample = page[0][0].sample
    layout: Layout = getattr(SAMPLE_SCHEMAS[sample.schema], block)
    turns, width = max(map(len, page)), len(_ids(block, sample))
    blank = pack(layout, [{}] * width)
    data = attrgetter(block)
    parts = [data(own[t].sample) if t < len(own) else blank for t in range(turns) for own in page]
    columns = stacked(layout, parts)
    shape = turns, len(page) * width
    rolled, delta = ROLLED[block], ROWS[block]["delta"]
    gauges = np.full((turns, len(rolled), shape[1]), np.nan)
    counters = np.full((turns, len(delta), shape[1]), MISSING_INT, np.int64)
    floats = {
        r.metric: as_float(columns[r.metric]).reshape(shape)
        for r in rolled
        if r.aggregate != "delta" and r.metric in columns
    }
    for i, r in enumerate(rolled):
        if r.aggregate != "delta" and r.metric in floats:
            gauges[:, i] = floats[r.metric]
    for i, row in enumerate(delta):
        metric = rolled[int(row)].metric
        if metric in columns:
            counters[:, i] = columns[metric].reshape(shape)
    return gauges, counters
