"""All-reduce among processes over TCP: a ring of connections between the fabric addresses of the nodes."""

from __future__ import annotations

import socket
import time

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

# Chosen: processes of a job start within seconds; on a machine under load within a minute.
_CONNECT_SECONDS = 90.0
# More than a chunk, so that a rank that sends before it receives does not wait for its neighbour.
_BUFFER_BYTES = 1 << 20


class Ring:
    """The two connections of rank ``rank``: to the next rank and from the one before it.

    ``addresses`` is where each rank listens. Raises ``OSError`` when the neighbours do not come up in time;
    a connection that is lost later is ``ConnectionError``.
    """

    def __init__(self, rank: int, addresses: list[tuple[str, int]]) -> None:
        self.rank, self.size = rank, len(addresses)
        with socket.create_server(addresses[rank], backlog=1) as listener:
            self._next = _connect(addresses[(rank + 1) % self.size])
            listener.settimeout(_CONNECT_SECONDS)
            self._before, _ = listener.accept()
        for connection in (self._next, self._before):
            connection.settimeout(None)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)

    def barrier(self) -> None:
        """Return when every rank has called this: a token passes the ring twice."""
        for _ in range(2):
            if self.rank == 0:
                self._next.sendall(b"t")
                self._receive(1)
            else:
                self._receive(1)
                self._next.sendall(b"t")

    def mean(self, values: Floats) -> Floats:
        """Return the mean of ``values`` over all ranks: reduce-scatter, then all-gather.

        Each of the 2(N - 1) rounds sends a chunk of 1/N of the values (Patarasuk and Yuan, 2009).
        """
        chunks = [chunk.copy() for chunk in np.array_split(values, self.size)]
        for shift in range(self.size - 1):
            self._next.sendall(chunks[(self.rank - shift) % self.size].tobytes())
            held = (self.rank - shift - 1) % self.size
            chunks[held] = chunks[held] + self._chunk(chunks[held].nbytes)
        for shift in range(self.size - 1):
            self._next.sendall(chunks[(self.rank + 1 - shift) % self.size].tobytes())
            held = (self.rank - shift) % self.size
            chunks[held] = self._chunk(chunks[held].nbytes)
        mean: Floats = np.concatenate(chunks) / np.float32(self.size)
        return mean

    def close(self) -> None:
        """Close both connections."""
        self._next.close()
        self._before.close()

    def _chunk(self, size: int) -> Floats:
        return np.frombuffer(self._receive(size), dtype=np.float32)

    def _receive(self, size: int) -> bytearray:
        held = bytearray(size)
        view = memoryview(held)
        while view:
            count = self._before.recv_into(view)
            if count == 0:
                raise ConnectionResetError(
                    f"rank {self.rank}: the connection from the rank before it was closed"
                )
            view = view[count:]
        return held


def _connect(address: tuple[str, int]) -> socket.socket:
    deadline = time.monotonic() + _CONNECT_SECONDS
    while True:
        try:
            return socket.create_connection(address, timeout=5.0)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
