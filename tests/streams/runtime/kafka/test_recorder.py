"""What is written of topics that grow while they are recorded."""

import asyncio
import contextlib

import pytest

from slowrank.settings import Settings
from streams.files.record_builder import read_records
from streams.runtime.kafka.recorder import write_recording
from tests.streams import traffic
from tests.streams.runtime.harness import rig

pytestmark = pytest.mark.integration


def test_a_recording_follows_topics_that_grow(kafka_bootstrap, database, tmp_path):
    """Records in partitions that came later are in the file, each once (15 s)."""
    records = list(traffic.nodes(count=12, seconds=20))
    with rig(kafka_bootstrap, database, tmp_path, partitions=2) as installation:
        settings = Settings(kafka_bootstrap=kafka_bootstrap, topic_prefix=installation.prefix)
        output = tmp_path / "recording.ndjson"
        asyncio.run(follow(settings, output, installation, records))
    written = read_records([output]).records
    assert sorted((r.node, r.ts) for r in written) == sorted((r.node, r.ts) for r in records)


async def follow(settings, output, installation, records):
    recording = asyncio.create_task(write_recording(settings, output, follow=True))
    half = len(records) // 2
    await asyncio.to_thread(installation.send, records[:half])
    await asyncio.to_thread(installation.grow, 6)
    await asyncio.to_thread(installation.send, records[half:])
    await asyncio.sleep(9)
    recording.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await recording
