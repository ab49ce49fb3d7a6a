"""Event streams: a thousand clients of one API, how soon each gets an event, and what memory they take.

Each client is a connection of its own to `GET /api/v1/events/stream`. Findings are stored one after the
other; the delay of an event is from the end of its transaction to its arrival at a client. Then some clients
stop reading while many findings are stored: the API has to end their streams and may not keep all events for
them. The database is one of the run's own on the server of SLOWRANK_TEST_DSN, else on an embedded PostgreSQL.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from psycopg_pool import ConnectionPool

from benchmarks.api.servers import Server, api, new_keys
from benchmarks.database import own_database
from benchmarks.delivery.feed import Feed, Planned
from store.pool import open_pool

# Streams that a key may have open.
PER_KEY = 4
# Clients of one loopback address: half of the connections of an API may be of one.
PER_ADDRESS = 250
# Goal of the product for the last of all clients.
LATEST_SECONDS = 1.0
# Bytes by which the API may grow with all clients, some of which do not read (chosen: 0.2 MB each).
MEMORY = 200 * 2**20


@dataclass(slots=True)
class Client:
    """One open stream; ``arrived`` has the time (monotonic) at which each finding's event came."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    arrived: dict[str, float] = field(default_factory=dict)
    ended: bool = False

    async def read(self) -> None:
        """Read until the stream ends."""
        while line := await self.reader.readline():
            if line.startswith(b"data: "):
                now = time.monotonic()
                at = line.find(b'"id": "fnd_')
                self.arrived[line[at + 7 : at + 37].decode()] = now
        self.ended = True


@dataclass(frozen=True, slots=True)
class Result:
    """Delays of all events at all clients in seconds, clients that missed any; memory in bytes by phase."""

    delays: list[float]
    missed: int
    memory: dict[str, int]


def main(argv: list[str]) -> int:
    """Print delays and memory; return 1 when a goal was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks streams", description=__doc__)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--events", type=int, default=20)
    parser.add_argument("--stuck", type=int, default=50, help="clients that stop reading in the second part")
    parser.add_argument("--burst", type=int, default=3000, help="events of the second part")
    options = parser.parse_args(argv)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with (
        own_database() as dsn,
        open_pool(dsn, name="benchmark") as pool,
        api(dsn, api_max_connections=2 * options.clients + 100) as server,
    ):
        tokens = new_keys(pool, -(-options.clients // PER_KEY))
        result = asyncio.run(_run(options, server, pool, tokens))
    worst = max(result.delays, default=float("inf"))
    p99 = statistics.quantiles(result.delays, n=100)[-1]
    print(
        f"{options.clients} clients, {options.events} events: delay median "
        f"{statistics.median(result.delays):.2f} s, p99 {p99:.2f} s, longest {worst:.2f} s; "
        f"{result.missed} clients missed an event"
    )
    print("memory of the API: " + ", ".join(f"{n} {b / 2**20:.0f} MiB" for n, b in result.memory.items()))
    grown = max(result.memory.values()) - result.memory["before"]
    return int(worst > LATEST_SECONDS or result.missed > 0 or grown > MEMORY)


async def _run(
    options: argparse.Namespace, server: Server, pool: ConnectionPool[Any], tokens: Sequence[str]
) -> Result:
    memory = {"before": server.memory()}
    clients = [await _open(server, tokens[i // PER_KEY], i) for i in range(options.clients)]
    reading = [asyncio.create_task(client.read()) for client in clients]
    # The first line of each stream, so that none begins after the first event.
    await asyncio.sleep(2)
    memory["with all clients"] = server.memory()
    feed = Feed(pool)
    stored = {}
    for number in range(options.events):
        await asyncio.to_thread(feed.take, Planned(0.0, number, "open"))
        stored[feed.truth[-1].id] = time.monotonic()
        await asyncio.sleep(0.7)
    await asyncio.sleep(2)
    delays = [
        client.arrived[finding] - at
        for client in clients
        for finding, at in stored.items()
        if finding in client.arrived
    ]
    missed = sum(1 for client in clients if client.arrived.keys() != stored.keys())
    memory["after the events"] = server.memory()
    memory |= await _stuck(options, server, feed, clients[: options.stuck], reading[: options.stuck])
    for client in clients:
        client.writer.close()
    await asyncio.gather(*reading, return_exceptions=True)
    await asyncio.sleep(2)
    memory["after all have left"] = server.memory()
    return Result(delays, missed, memory)


async def _stuck(
    options: argparse.Namespace,
    server: Server,
    feed: Feed,
    clients: Sequence[Client],
    reading: Sequence[asyncio.Task[None]],
) -> dict[str, int]:
    """Store many findings while some clients do not read; return the largest memory."""
    for task in reading:
        task.cancel()
    for client in clients:
        # Beyond its buffer asyncio reads no more: the kernel's buffers fill, and then those of the API.
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    most = server.memory()
    for number in range(options.events, options.events + options.burst):
        await asyncio.to_thread(feed.take, Planned(0.0, number, "open"))
        if number % 50 == 0:
            most = max(most, server.memory())
    await asyncio.sleep(2)
    return {f"while {options.stuck} do not read": max(most, server.memory())}


async def _open(server: Server, token: str, number: int) -> Client:
    """Open a stream and read the head of its answer. Raises ``RuntimeError`` for a refusal."""
    address = f"127.0.1.{1 + number // PER_ADDRESS}"
    # Some kB for a line: an event is one.
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", server.port, local_addr=(address, 0), limit=2**20
    )
    head = f"GET /api/v1/events/stream HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {token}\r\n\r\n"
    writer.write(head.encode())
    answer = await reader.readuntil(b"\r\n\r\n")
    if not answer.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(f"client {number}: {answer.splitlines()[0].decode()}")
    return Client(reader, writer)
