"""CPU time of comparing the nodes of a whole cluster with each other (`python -m benchmarks gray`).

Samples of 8 GPUs and 8 NICs, one a second, for one minute of a large fleet: summed by node stages, sent as
messages, gathered and judged by the finding stage. Nodes beyond 64 are copies under other names. The run
asserts that one stage and several give the same messages. CPU time of the process; bytes of the messages, and
in batches of 16 compressed as in the workers' producer.
"""

from __future__ import annotations

import argparse
import statistics
import time
import zlib
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from aiokafka.codec import zstd_encode

from detectors.node.gray_envelope import Envelope
from simulator import Cluster, ClusterSpec
from simulator.cluster.layout import one_job
from slowrank.telemetry import MinuteMeans, NodeSample, decode_message, encode
from streams.cluster.stage import FindingStage
from streams.config.settings import Configs, Tuning
from streams.config.stages import gray_nodes
from streams.gray_features import FEATURES, WINDOW_SECONDS
from streams.node.minute_means import MinuteSums
from streams.runtime.gc_tuning import collect_less_often

UNIT, PARTITIONS, BATCH, MINUTES = 64, 7, 16, 5

# Squared distance over all features: with independent features one node in a thousand is outside.
THRESHOLD = 60.0


def main(argv: list[str]) -> int:
    """Print the table of one fleet."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks gray", description=__doc__)
    parser.add_argument("--nodes", type=int, default=12_500)
    nodes = parser.parse_args(argv).nodes
    collect_less_often()
    one, split = MinuteSums(), [MinuteSums() for _ in range(PARTITIONS)]
    spent = []
    for second in _seconds(nodes):
        start = time.process_time()
        one.take(second)
        spent.append(time.process_time() - start)
        for number, readings in enumerate(split):
            readings.take([s for s in second if zlib.crc32(s.node.encode()) % PARTITIONS == number])
    start = time.process_time()
    means = one.tick(np.inf)
    messages = [encode(row) for row in means]
    sending = time.process_time() - start
    assert sorted(messages) == sorted(encode(row) for part in split for row in part.tick(np.inf))
    gathering, judging = _judged(messages, nodes)
    parts = [WINDOW_SECONDS * statistics.median(spent), sending, gathering, judging]
    # Only the originals: copies would compress too well.
    unlike = [m for m, row in zip(messages, means, strict=True) if row.node.endswith("-0")]
    batches = [b"".join(unlike[n : n + BATCH]) for n in range(0, len(unlike), BATCH)]
    packed = sum(len(zstd_encode(batch)) for batch in batches) / len(unlike)
    print("| nodes | sum | send | read and gather | judge | of a core | bytes | compressed |")
    print("|---:|" + "---:|" * 7)
    print(
        f"| {nodes:,} | "
        + " | ".join(f"{1e6 * part / nodes:.0f}" for part in parts)
        + f" | {sum(parts) / WINDOW_SECONDS:.1%} | {sum(map(len, messages)) / nodes:.0f}"
        + f" | {packed:.0f} |"
    )
    print("\nµs and bytes per node and minute; of a core: share of one core, all parts")
    return 0


def _seconds(nodes: int) -> Iterator[Sequence[NodeSample]]:
    """Yield the samples of one minute, second by second."""
    spec = ClusterSpec(nodes=UNIT, jobs=(one_job(UNIT, 8),))
    first = -(-spec.start // WINDOW_SECONDS) * WINDOW_SECONDS
    seconds: dict[int, list[NodeSample]] = {}
    for record in Cluster(spec, seed=11).run(2 * WINDOW_SECONDS):
        if isinstance(record, NodeSample) and first <= record.ts < first + WINDOW_SECONDS:
            seconds.setdefault(int(record.ts), []).append(record)
    for samples in seconds.values():
        copies = (
            msgspec.structs.replace(sample, node=f"{sample.node}-{copy}")
            for copy in range(-(-nodes // UNIT))
            for sample in samples
        )
        yield [sample for sample, _ in zip(copies, range(nodes), strict=False)]


def _judged(messages: Sequence[bytes], nodes: int) -> tuple[float, float]:
    """Return the CPU seconds of reading and gathering a minute, and of judging it."""
    count = len(FEATURES)
    precision = tuple(tuple(row) for row in np.eye(count).tolist())
    region = Envelope(FEATURES, (0.0,) * count, precision, THRESHOLD)
    stage = gray_nodes(FindingStage(), Tuning(base=Configs(gray=region)))
    gathering, judging = [], []
    for minute in range(MINUTES):
        late = [
            _later(row, minute)
            for message in messages
            if isinstance(row := decode_message(message), MinuteMeans)
        ]
        encoded = [encode(row) for row in late]
        start = time.process_time()
        for message in encoded:
            stage.process(decode_message(message))
        gathered = time.process_time()
        stage.tick(late[0].ts)
        gathering.append(gathered - start)
        judging.append(time.process_time() - gathered)
    assert len(late) == nodes
    return statistics.median(gathering), statistics.median(judging)


def _later(row: MinuteMeans, minutes: int) -> MinuteMeans:
    by = minutes * WINDOW_SECONDS
    return msgspec.structs.replace(row, ts=row.ts + by, start=row.start + by)
