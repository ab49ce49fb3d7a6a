"""The load: records of a simulated fleet, written to a file as requests, and sent when they are due."""

from __future__ import annotations

import asyncio
import heapq
import json
import struct
import sys
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
from aiokafka.partitioner import murmur2

from benchmarks.capacity.produce import Connection, request
from simulator import Cluster, ClusterSpec
from simulator.cluster.layout import one_job
from simulator.faults.fault import Fault
from slowrank.telemetry import NodeEvent, Record, encode
from streams.runtime.kafka.record_producer import key_of, topic_of

# Nodes of a simulated job of 8 GPUs and 8 NICs each; further nodes are copies of it under other names.
UNIT = 64

CLUSTER = "capacity"
XID = "xid.79"
CONNECTIONS = 4
_SLICES = 20
_HEAD = struct.Struct(">dI")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """``seconds`` of ``nodes`` nodes from Unix time ``start`` on, and a fatal XID every ``every`` seconds.

    ``faults``: what else happens, in every job of ``unit`` nodes.
    """

    nodes: int
    seconds: int
    partitions: int
    start: float = 0.0
    every: float = 15.0
    unit: int = UNIT
    faults: tuple[Fault, ...] = ()

    @property
    def onsets(self) -> dict[str, float]:
        """The nodes that lose a GPU, and when (Unix time)."""
        count = int((self.seconds - 30) / self.every)
        apart = max(1, self.nodes // max(1, count))
        return {
            node_name(n * apart % self.nodes): self.start + 20.0 + n * self.every
            for n in range(max(0, count))
        }


def node_name(number: int) -> str:
    """Return the name of a node of the fleet."""
    return f"n{number:05}"


def record(load: Load, path: Path) -> int:
    """Write the requests of a load to a file in the order in which they are due; return their number.

    A record is sent up to a second after its time stamp, at another moment for each node, as of exporters
    that were not started together.
    """
    count = 0
    with path.open("wb") as file:
        for due, made in in_order(load):
            partition = (murmur2(key_of(made)) & 0x7FFFFFFF) % load.partitions
            data = request(topic_of(made), partition, key_of(made), encode(made), made.ts)
            file.write(_HEAD.pack(due - load.start, len(data)) + data)
            count += 1
    return count


def in_order(load: Load) -> Iterator[tuple[float, Record]]:
    """Yield the records of a load as they are due: a Unix time and the record."""
    # Records of the simulator come in the order of their times, and each is due within a second.
    waiting: list[tuple[float, int, Record]] = []
    for number, (due, made) in enumerate(_records(load)):
        heapq.heappush(waiting, (due, number, made))
        while waiting and waiting[0][0] < made.ts:
            yield waiting[0][0], heapq.heappop(waiting)[2]
    while waiting:
        yield waiting[0][0], heapq.heappop(waiting)[2]


def _records(load: Load) -> Iterator[tuple[float, Record]]:
    unit = load.unit
    spec = ClusterSpec(nodes=unit, jobs=(one_job(unit, 8),), name=CLUSTER, start=load.start)
    numbers = {spec.node_name(n): n for n in range(unit)}
    events = sorted(load.onsets.items(), key=lambda item: item[1])
    for made in Cluster(spec, seed=11, faults=load.faults).run(load.seconds):
        while events and events[0][1] <= made.ts:
            node, at = events.pop(0)
            yield at, _xid(node, at)
        for copy in range(-(-load.nodes // unit)):
            number = copy * unit + numbers[made.node]
            if number < load.nodes:
                yield made.ts + _phase(number), _renamed(made, number, copy)


def _phase(number: int) -> float:
    return zlib.crc32(node_name(number).encode()) % 1000 / 1000


def _renamed(made: Record, number: int, copy: int) -> Record:
    job = {}
    if not isinstance(made, NodeEvent) and made.job_id is not None:
        job = {"job_id": f"{made.job_id}-{copy}"}
    return msgspec.structs.replace(made, node=node_name(number), **job)


def _xid(node: str, at: float) -> NodeEvent:
    return NodeEvent(
        cluster=CLUSTER,
        node=node,
        boot_id="sim-boot-1",
        seq=1,
        ts=at,
        source="kmsg",
        code=XID,
        severity="critical",
        subject={"gpu_index": 0},
        message="NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus.",
    )


async def send(
    path: Path, bootstrap: str, start: float, *, connections: int = CONNECTIONS
) -> tuple[int, int, float]:
    """Send a recorded load over ``connections``; return requests sent, errors, and by how many seconds
    the last one was late.

    What is sent as fast as the broker takes it needs a single one: of several, one gets ahead of the others
    by seconds of the load, and the log would hold the records of a node out of order.
    """
    opened = [Connection() for _ in range(connections)]
    for connection in opened:
        await connection.open(bootstrap)
    sent = [0] * connections
    late = 0.0
    for number, (due, count, data) in enumerate(_slices(path)):
        await asyncio.sleep(max(0.0, start + due - time.time()))
        late = time.time() - start - due
        await opened[number % connections].send(data)
        sent[number % connections] += count
    for connection, of_it in zip(opened, sent, strict=True):
        await connection.close(of_it)
    return sum(sent), sum(connection.errors for connection in opened), late


def _slices(path: Path) -> Iterator[tuple[float, int, bytes]]:
    """Yield (due, number, bytes) of the requests of every twentieth of a second."""
    end = 1 / _SLICES
    pending: list[bytes] = []
    with path.open("rb", buffering=1 << 22) as file:
        while head := file.read(_HEAD.size):
            due, size = _HEAD.unpack(head)
            while due >= end:
                if pending:
                    yield end, len(pending), b"".join(pending)
                end, pending = end + 1 / _SLICES, []
            pending.append(file.read(size))
    if pending:
        yield end, len(pending), b"".join(pending)


def main(argv: list[str]) -> int:
    """Send the file ``argv[0]`` to the broker ``argv[1]`` from Unix time ``argv[2]`` on, and report."""
    sent, errors, late = asyncio.run(send(Path(argv[0]), argv[1], float(argv[2])))
    print(json.dumps({"sent": sent, "errors": errors, "late": round(late, 2)}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
