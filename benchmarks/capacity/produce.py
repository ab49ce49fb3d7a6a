"""Produce requests as bytes, made before they are sent, and a connection that sends them.

A client library compresses and checks what it sends; the load of thousands of exporters would then take the
processor time that is to be measured. Requests are of version 7 of the Kafka protocol (KIP-110: zstd).
"""

from __future__ import annotations

import asyncio
import struct

from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

_API_PRODUCE, _VERSION, _ALL_REPLICAS, _TIMEOUT_MS = 0, 7, -1, 30_000
_CLIENT = b"capacity"
_NO_PRODUCER = -1


def request(topic: str, partition: int, key: bytes, value: bytes, timestamp: float) -> bytes:
    """Return the request that appends one record, compressed with zstd as an exporter's producer does."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=DefaultRecordBatch.CODEC_ZSTD,
        is_transactional=0,
        producer_id=_NO_PRODUCER,
        producer_epoch=_NO_PRODUCER,
        base_sequence=_NO_PRODUCER,
        batch_size=1 << 20,
    )
    builder.append(0, int(timestamp * 1000), key, value, headers=[])
    batch = bytes(builder.build())
    name = topic.encode()
    body = b"".join(
        (
            struct.pack(">hhih", _API_PRODUCE, _VERSION, 0, len(_CLIENT)) + _CLIENT,
            struct.pack(">hhi", -1, _ALL_REPLICAS, _TIMEOUT_MS),
            struct.pack(">ih", 1, len(name)) + name,
            struct.pack(">iii", 1, partition, len(batch)) + batch,
        )
    )
    return struct.pack(">i", len(body)) + body


def error_code(response: bytes) -> int:
    """Return the broker's error code in the answer to such a request; 0 means that the record is stored."""
    (length,) = struct.unpack_from(">h", response, 8)
    # Correlation id and the count of topics, the topic's name, the count of partitions, the partition.
    return int(struct.unpack_from(">h", response, 10 + length + 8)[0])


class Connection:
    """Sends requests without waiting for their answers; ``errors`` counts those that were refused."""

    def __init__(self) -> None:
        self.errors = 0
        self._answered = 0
        self._answer = asyncio.Event()

    async def open(self, bootstrap: str) -> None:
        """Connect to the first broker of ``bootstrap``."""
        host, _, port = bootstrap.split(",")[0].rpartition(":")
        self._reader, self._writer = await asyncio.open_connection(host, int(port))
        self._answers = asyncio.create_task(self._read())

    async def send(self, requests: bytes) -> None:
        """Send requests; waits where the broker takes no more."""
        self._writer.write(requests)
        await self._writer.drain()

    async def close(self, sent: int, seconds: float = 60.0) -> None:
        """Wait for the answers to ``sent`` requests and disconnect. Raises ``TimeoutError``."""
        async with asyncio.timeout(seconds):
            while self._answered < sent:
                self._answer.clear()
                await self._answer.wait()
        self._answers.cancel()
        self._writer.close()

    async def _read(self) -> None:
        while True:
            (size,) = struct.unpack(">i", await self._reader.readexactly(4))
            self.errors += error_code(await self._reader.readexactly(size)) != 0
            self._answered += 1
            self._answer.set()
