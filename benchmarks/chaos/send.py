"""Sends a recorded story as exporters do: until the brokers have it, however long they are away."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from pathlib import Path

from aiokafka import AIOKafkaProducer

from benchmarks.chaos.story import SENDERS, messages

# An exporter keeps what it cannot send in its spool; here that is the queue of the client.
_GIVE_UP_MS = 600_000

# An exporter tries again to reach its brokers after as long.
_AGAIN_MS = 500

# Age at which each client looks again how many partitions there are: an exporter does within 30 s.
_SEES_GROWTH_MS = (1_000, 10_000, 20_000, 30_000)

_Message = tuple[str, bytes, bytes]


async def send(path: Path, bootstrap: str, start: float) -> int:
    """Send each message when it is due, second 0 being Unix time ``start``; return how many were."""
    spools: list[asyncio.Queue[_Message | None]] = [asyncio.Queue() for _ in range(SENDERS)]
    exporters = [
        asyncio.create_task(_export(bootstrap, spool, age))
        for spool, age in zip(spools, _SEES_GROWTH_MS, strict=True)
    ]
    count = 0
    for due, sender, topic, key, value in messages(path):
        if (wait := start + due - time.time()) > 0:
            await asyncio.sleep(wait)
        elif count % 100 == 0:
            await asyncio.sleep(0)
        spools[sender].put_nowait((topic, key, value))
        count += 1
    for spool in spools:
        spool.put_nowait(None)
    await asyncio.gather(*exporters)
    return count


async def _export(bootstrap: str, spool: asyncio.Queue[_Message | None], metadata_ms: int) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        acks="all",
        compression_type="zstd",
        request_timeout_ms=_GIVE_UP_MS,
        metadata_max_age_ms=metadata_ms,
        retry_backoff_ms=_AGAIN_MS,
    )
    await producer.start()
    try:
        waiting: set[asyncio.Future[object]] = set()
        failed: list[BaseException] = []

        def settle(future: asyncio.Future[object]) -> None:
            waiting.discard(future)
            if (error := future.exception()) is not None:
                failed.append(error)

        while (message := await spool.get()) is not None:
            topic, key, value = message
            future = await producer.send(topic, value=value, key=key)
            waiting.add(future)
            future.add_done_callback(settle)
        await asyncio.gather(*waiting)
        if failed:
            raise failed[0]
    finally:
        await producer.stop()


def main(argv: list[str]) -> int:
    """Send the file ``argv[0]`` to the brokers ``argv[1]`` from Unix time ``argv[2]`` on, and report."""
    # Brokers that are away are part of the plan.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    print(json.dumps({"sent": asyncio.run(send(Path(argv[0]), argv[1], float(argv[2])))}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
