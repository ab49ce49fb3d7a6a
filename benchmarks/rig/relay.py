"""A link that delays or loses packets, in user space: the kernel's netem is missing from many kernels.

The port of a node leaves its bridge, and this process carries frames between it and the bridge (AF_PACKET).
"""

from __future__ import annotations

import argparse
import heapq
import random
import select
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from subprocess import CalledProcessError, Popen

from benchmarks.rig.network import run

# linux/if_packet.h, which the socket module does not have. With the header of virtio-net before each frame
# the kernel keeps what it left to the device: check sums, and segmentation of frames of up to 64 kB.
_SOL_PACKET, _PACKET_VNET_HDR, _PACKET_IGNORE_OUTGOING = 263, 15, 23
_ALL_PROTOCOLS = 0x0003
_FRAME_BYTES = 65_600


class DelayLine:
    """Frames that are under way: ``put`` takes one at a time, ``due`` returns those that have arrived.

    ``loss`` is the probability that a frame is lost, each by itself; the order is kept.
    """

    def __init__(self, delay: float, loss: float, rng: random.Random) -> None:
        self._delay, self._loss, self._rng = delay, loss, rng
        self._under_way: list[tuple[float, int, bytes]] = []
        self._count = 0

    def put(self, frame: bytes, now: float) -> None:
        if self._rng.random() >= self._loss:
            self._count += 1
            heapq.heappush(self._under_way, (now + self._delay, self._count, frame))

    def due(self, now: float) -> list[bytes]:
        arrived = []
        while self._under_way and self._under_way[0][0] <= now:
            arrived.append(heapq.heappop(self._under_way)[2])
        return arrived

    def next_due(self) -> float | None:
        return self._under_way[0][0] if self._under_way else None


@contextmanager
def relayed(port: str, bridge: str, *, delay: float, loss: float) -> Iterator[None]:
    """Put a relay between ``port`` and ``bridge``; ``delay`` in seconds each way, ``loss`` a probability."""
    inner, outer = f"{port}i", f"{port}o"
    run("ip", "link", "add", inner, "type", "veth", "peer", "name", outer)
    relay: Popen[bytes] | None = None
    try:
        for link in (port, inner):
            run("ip", "link", "set", link, "nomaster")
        for link in (inner, outer):
            run("ip", "link", "set", link, "promisc", "on", "up")
        run("ip", "link", "set", port, "promisc", "on")
        run("ip", "link", "set", outer, "master", bridge)
        argv = [sys.executable, "-m", "benchmarks.rig.relay", port, inner, str(delay), str(loss)]
        relay = Popen(argv)
        yield
    finally:
        if relay is not None:
            relay.kill()
            relay.wait()
        with suppress(CalledProcessError):
            run("ip", "link", "del", inner)
        run("ip", "link", "set", port, "master", bridge)


def carry(one: str, other: str, *, delay: float, loss: float) -> None:
    """Carry frames between two interfaces until killed."""
    sockets = [_open(one), _open(other)]
    rng = random.Random(0)
    lines = [DelayLine(delay, loss, rng) for _ in sockets]
    while True:
        times = [at for line in lines if (at := line.next_due()) is not None]
        timeout = max(0.0, min(times) - time.monotonic()) if times else None
        ready, _, _ = select.select(sockets, [], [], timeout)
        for source, line in zip(sockets, lines, strict=True):
            if source in ready:
                line.put(source.recv(_FRAME_BYTES), time.monotonic())
        for line, target in zip(lines, reversed(sockets), strict=True):
            for frame in line.due(time.monotonic()):
                # A full queue of the interface loses the frame, as a switch's does.
                with suppress(OSError):
                    target.send(frame)


def _open(interface: str) -> socket.socket:
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS))
    for option in (_PACKET_VNET_HDR, _PACKET_IGNORE_OUTGOING):
        opened.setsockopt(_SOL_PACKET, option, 1)
    opened.bind((interface, 0))
    return opened


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("one")
    parser.add_argument("other")
    parser.add_argument("delay", type=float)
    parser.add_argument("loss", type=float)
    given = parser.parse_args()
    carry(given.one, given.other, delay=given.delay, loss=given.loss)
