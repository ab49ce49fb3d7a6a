"""Assigns nodes to blocks: nodes with equally many devices share a block and are processed at once."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from slowrank.telemetry import NodeSample, Suspicion
from streams.deadlines import NextDeadline
from streams.node.batch import Devices, Shape
from streams.node.config import NodeConfig
from streams.node.node_block import NodeBlock

# Nodes in the first block of a shape, and in all that follow. Chosen: small, so that a single node takes
# little memory (a row of 8 GPUs and 8 NICs has 0.09 MB), and enough for the nodes of a usual partition, as
# every block costs 1.3 ms a second (docs/decisions/0029); not too large, so that the arrays of one operation
# stay in the cache.
SIZES = (128, 512)

# Slots that a node may have beyond twice the devices of a sample: where names come and go (interfaces of
# containers), slots of departed devices are dropped beyond that. Chosen: no usual node has so many spare.
SPARE_DEVICES = 16

# Devices of all nodes in a first block. Chosen: 16 for each node; nodes with more share smaller blocks.
FIRST_SLOTS = 16 * SIZES[0]

NodeKey = tuple[str, str]


@dataclass(slots=True)
class _Node:
    block: NodeBlock
    row: int
    devices: Devices
    ts: float = -math.inf
    boot_id: str = ""
    seq: int = -1


class NodeTable:
    """All nodes of a key group, in ``blocks`` by shape.

    Nodes are independent: each node's samples are processed in their order, and give the same results
    whatever other samples come with them.
    """

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._nodes: dict[NodeKey, _Node] = {}
        self._oldest = NextDeadline()
        self.blocks: dict[Shape, list[NodeBlock]] = {}
        self.ignored: Counter[str] = Counter()

    def fresh(self, records: Sequence[object]) -> dict[int, NodeSample]:
        """Return every sample that is younger than all of its node before it, by its index in ``records``.

        The other samples are counted.
        """
        fresh: dict[int, NodeSample] = {}
        last: dict[NodeKey, tuple[float, str, int]] = {}
        for index, sample in enumerate(records):
            if not isinstance(sample, NodeSample):
                continue
            key = (sample.cluster, sample.node)
            ts, boot_id, seq = last.get(key) or self._last(key)
            if sample.ts > ts:
                last[key] = sample.ts, sample.boot_id, sample.seq
                fresh[index] = sample
            else:
                same = (sample.boot_id, sample.seq) == (boot_id, seq)
                self.ignored["duplicate" if same else "late"] += 1
        return fresh

    def update(self, samples: Sequence[NodeSample]) -> list[list[Suspicion]]:
        """Process fresh samples; return the suspicions of each."""
        found: list[list[Suspicion]] = [[] for _ in samples]
        # One sample a node and call: of two, assignment by index would keep the second alone.
        for turn in turns(samples):
            by_block: dict[NodeBlock, list[tuple[int, int]]] = {}
            for index in turn:
                node = self._node_of(samples[index])
                by_block.setdefault(node.block, []).append((node.row, index))
            for block, taken in by_block.items():
                # In ascending order, so that neighbours are one slice of the block.
                rows, indexes = zip(*sorted(taken), strict=True)
                for k, suspicion in block.update(rows, [samples[index] for index in indexes]):
                    found[indexes[k]].append(suspicion)
        return found

    def relearn(self, key: NodeKey) -> None:
        """Handle a planned change of a node's work."""
        node = self._nodes.get(key)
        if node is not None:
            node.block.relearn(node.row)

    def forget(self, before: float) -> None:
        """Drop the nodes whose last sample is older than ``before`` (event time)."""
        if self._oldest.reached(before):
            for key in [key for key, node in self._nodes.items() if node.ts < before]:
                self._leave(self._nodes.pop(key))
            self._oldest.counted(node.ts for node in self._nodes.values())

    def _last(self, key: NodeKey) -> tuple[float, str, int]:
        node = self._nodes.get(key)
        return (-math.inf, "", -1) if node is None else (node.ts, node.boot_id, node.seq)

    def _node_of(self, sample: NodeSample) -> _Node:
        """Return the node of a sample, which is then its last."""
        key = (sample.cluster, sample.node)
        node = self._nodes.get(key)
        if node is None:
            node = self._nodes[key] = self._new_node(_devices_of(sample))
            self._oldest.note(sample.ts)
        # Counters and devices of a node that was rebooted may be others.
        elif node.boot_id != sample.boot_id:
            node = self._nodes[key] = self._restarted(node, sample)
        elif not node.devices.holds(sample):
            node = self._nodes[key] = self._moved(node, _widened(node.devices, sample))
        node.ts, node.boot_id, node.seq = sample.ts, sample.boot_id, sample.seq
        return node

    def _restarted(self, node: _Node, sample: NodeSample) -> _Node:
        node.block.restart(node.row)
        devices = _devices_of(sample)
        return node if devices == node.devices else self._moved(node, devices)

    def _moved(self, node: _Node, devices: Devices) -> _Node:
        moved = self._new_node(devices)
        # Before the old row is freed, which drops its state.
        moved.block.carry(moved.row, node.block, node.row)
        self._leave(node)
        return moved

    def _leave(self, node: _Node) -> None:
        node.block.leave(node.row)
        blocks = self.blocks[node.devices.shape]
        if node.block.empty:
            blocks.remove(node.block)
            if not blocks:
                del self.blocks[node.devices.shape]

    def _new_node(self, devices: Devices) -> _Node:
        blocks = self.blocks.setdefault(devices.shape, [])
        block = next((block for block in blocks if not block.full), None)
        if block is None:
            room = FIRST_SLOTS // max(1, devices.shape.gpus, devices.shape.nics)
            # Later blocks have as much more room than the first as in ``SIZES``.
            size = max(1, min(SIZES[bool(blocks)], room * SIZES[bool(blocks)] // SIZES[0]))
            block = NodeBlock(devices.shape, size, self._config)
            blocks.append(block)
        return _Node(block, block.take(devices), devices)


def _widened(devices: Devices, sample: NodeSample) -> Devices:
    widened, own = devices.widened(sample), _devices_of(sample)
    for all_names, named in ((widened.gpus, own.gpus), (widened.nics, own.nics)):
        if len(all_names) > 2 * len(named) + SPARE_DEVICES:
            return own
    return widened


def _devices_of(sample: NodeSample) -> Devices:
    return Devices(sample.schema, sample.gpu_ids, sample.nic_ids)


def turns(samples: Sequence[NodeSample]) -> Iterator[list[int]]:
    """Yield the indexes of the samples in turns that hold at most one of each node."""
    keys = [(sample.cluster, sample.node) for sample in samples]
    if len(set(keys)) == len(keys):
        yield list(range(len(keys)))
        return
    seen: Counter[NodeKey] = Counter()
    turns: list[list[int]] = []
    for index, key in enumerate(keys):
        if seen[key] == len(turns):
            turns.append([])
        turns[seen[key]].append(index)
        seen[key] += 1
    yield from turns
