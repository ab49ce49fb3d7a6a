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

SIZES = (64, 512)
"""Nodes in the first block of a shape, and in all that follow. Chosen: small, so that a single node takes
little memory; not too large, so that the arrays of one operation stay in the cache."""

SPARE_DEVICES = 16
"""Lanes that a node may have beyond twice the devices of a sample: where names come and go (interfaces of
containers), lanes of departed devices are dropped beyond that. Chosen."""

LANES = 16 * SIZES[0]
"""Devices that a first block has room for, where its nodes have many."""

NodeKey = tuple[str, str]


@dataclass(slots=True)
class _Seat:
    page: NodeBlock
    row: int
    devices: Devices
    ts: float = -math.inf
    boot_id: str = ""
    seq: int = -1


class NodeTable:
    """All nodes of a key group; ``pages`` are their blocks by shape.

    Nodes are independent: each node's samples are processed in their order, and give the same results
    whatever other samples come with them."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._seats: dict[NodeKey, _Seat] = {}
        self._oldest = NextDeadline()
        self.pages: dict[Shape, list[NodeBlock]] = {}
        self.ignored: Counter[str] = Counter()

    def fresh(self, records: Sequence[object]) -> dict[int, NodeSample]:
        """Return by its place every sample that is younger than all of its node before it.

        The other samples are counted.
        """
        fresh: dict[int, NodeSample] = {}
        last: dict[NodeKey, tuple[float, str, int]] = {}
        for place, sample in enumerate(records):
            if not isinstance(sample, NodeSample):
                continue
            key = (sample.cluster, sample.node)
            ts, boot_id, seq = last.get(key) or self._last(key)
            if sample.ts > ts:
                last[key] = sample.ts, sample.boot_id, sample.seq
                fresh[place] = sample
            else:
                same = (sample.boot_id, sample.seq) == (boot_id, seq)
                self.ignored["duplicate" if same else "late"] += 1
        return fresh

    def update(self, samples: Sequence[NodeSample]) -> list[list[Suspicion]]:
        """Take samples that are fresh; return what each gives rise to."""
        found: list[list[Suspicion]] = [[] for _ in samples]
        # One sample a node and call: of two, assignment by index would keep the second alone.
        for turn in turns(samples):
            by_page: dict[int, list[tuple[int, int]]] = {}
            pages: dict[int, NodeBlock] = {}
            for place in turn:
                seat = self._seated(samples[place])
                pages[id(seat.page)] = seat.page
                by_page.setdefault(id(seat.page), []).append((seat.row, place))
            for page_id, seated in by_page.items():
                # In ascending order, so that neighbours are one slice of the block.
                rows, places = zip(*sorted(seated), strict=True)
                for k, suspicion in pages[page_id].update(rows, [samples[place] for place in places]):
                    found[places[k]].append(suspicion)
        return found

    def relearn(self, key: NodeKey) -> None:
        """Handle a planned change of a node's work."""
        seat = self._seats.get(key)
        if seat is not None:
            seat.page.relearn(seat.row)

    def forget(self, before: float) -> None:
        """Drop the nodes whose last sample is older than ``before`` (event time)."""
        if self._oldest.reached(before):
            for key in [key for key, seat in self._seats.items() if seat.ts < before]:
                self._leave(self._seats.pop(key))
            self._oldest.counted(seat.ts for seat in self._seats.values())

    def _last(self, key: NodeKey) -> tuple[float, str, int]:
        seat = self._seats.get(key)
        return (-math.inf, "", -1) if seat is None else (seat.ts, seat.boot_id, seat.seq)

    def _seated(self, sample: NodeSample) -> _Seat:
        """Return the seat for a sample, which is then its node's last."""
        key = (sample.cluster, sample.node)
        seat = self._seats.get(key)
        if seat is None:
            seat = self._seats[key] = self._new_seat(_devices_of(sample))
            self._oldest.note(sample.ts)
        elif seat.boot_id != sample.boot_id:
            seat = self._seats[key] = self._restarted(seat, sample)
        elif not seat.devices.holds(sample):
            seat = self._seats[key] = self._moved(seat, _widened(seat.devices, sample))
        seat.ts, seat.boot_id, seat.seq = sample.ts, sample.boot_id, sample.seq
        return seat

    def _restarted(self, seat: _Seat, sample: NodeSample) -> _Seat:
        seat.page.restart(seat.row)
        devices = _devices_of(sample)
        return seat if devices == seat.devices else self._moved(seat, devices)

    def _moved(self, seat: _Seat, devices: Devices) -> _Seat:
        moved = self._new_seat(devices)
        # Before the old row is freed, which drops its state.
        moved.page.carry(moved.row, seat.page, seat.row)
        self._leave(seat)
        return moved

    def _leave(self, seat: _Seat) -> None:
        seat.page.leave(seat.row)
        pages = self.pages[seat.devices.shape]
        if seat.page.empty:
            pages.remove(seat.page)
            if not pages:
                del self.pages[seat.devices.shape]

    def _new_seat(self, devices: Devices) -> _Seat:
        pages = self.pages.setdefault(devices.shape, [])
        page = next((page for page in pages if not page.full), None)
        if page is None:
            room = LANES // max(1, devices.shape.gpus, devices.shape.nics)
            # Later blocks have eight times the room of the first, as in ``SIZES``.
            size = max(1, min(SIZES[bool(pages)], room if not pages else 8 * room))
            page = NodeBlock(devices.shape, size, self._config)
            pages.append(page)
        return _Seat(page, page.take(devices), devices)


def _widened(devices: Devices, sample: NodeSample) -> Devices:
    widened, own = devices.widened(sample), _devices_of(sample)
    for all_names, named in ((widened.gpus, own.gpus), (widened.nics, own.nics)):
        if len(all_names) > 2 * len(named) + SPARE_DEVICES:
            return own
    return widened


def _devices_of(sample: NodeSample) -> Devices:
    return Devices(sample.schema, sample.gpu_ids, sample.nic_ids)


def turns(samples: Sequence[NodeSample]) -> Iterator[list[int]]:
    """Yield the numbers of the samples in turns that hold at most one of each node."""
    keys = [(sample.cluster, sample.node) for sample in samples]
    if len(set(keys)) == len(keys):
        yield list(range(len(keys)))
        return
    seen: Counter[NodeKey] = Counter()
    turns: list[list[int]] = []
    for place, key in enumerate(keys):
        if seen[key] == len(turns):
            turns.append([])
        turns[seen[key]].append(place)
        seen[key] += 1
    yield from turns
