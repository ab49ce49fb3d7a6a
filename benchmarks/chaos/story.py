"""The telemetry of a fleet as a file of messages, and what one process that nothing disturbs makes of it."""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from alerts.report.runbook import with_runbook
from benchmarks.capacity.load import Load, in_order
from simulator.faults.fault import Fault
from slowrank.settings import Settings
from slowrank.telemetry import JobSteps, NodeSample, Record, encode
from slowrank.telemetry.schema import STEP_SCHEMAS
from slowrank.telemetry.topics import JOB_STEPS, NODE_EVENTS, NODE_SAMPLES
from store.findings.rows import document
from streams.columns import columns
from streams.pipeline import local_pipeline
from streams.runtime.faust_app import Role
from streams.runtime.kafka.record_producer import key_of, topic_of

TOPICS = (NODE_SAMPLES, NODE_EVENTS, JOB_STEPS)
# Topics of telemetry that each role reads; records of all but these are made by slowrank itself.
READS: dict[Role, tuple[str, ...]] = {"detect": TOPICS, "sink": (NODE_SAMPLES, JOB_STEPS)}

# Clients that stand for the exporters, each for a part of the nodes.
SENDERS = 4

_HEAD = struct.Struct(">dBBHI")

Row = tuple[str, str, str, float]
"""Table, node or job, instance or rank, and the Unix time of the bucket."""


@dataclass(frozen=True, slots=True)
class Story:
    """A recorded load, and what must come of it.

    ``findings``: id -> finding.v1 object in its last version; ``rows``: how many records each roll-up row
    holds; ``dues``: by role, when each of its records is sent, in seconds of the load.
    """

    load: Load
    findings: dict[str, dict[str, Any]]
    rows: Counter[Row]
    dues: dict[Role, npt.NDArray[np.float64]]

    @property
    def records(self) -> int:
        """How many records there are."""
        return len(self.dues["detect"])


def faults(seconds: int) -> tuple[Fault, ...]:
    """Return what happens in each job beside the XIDs: a GPU that slows down, and a port that flaps.

    Both end before the load does: what is seen in its last seconds is not weighed while nothing follows.
    """
    return (
        Fault(
            kind="clock_lock",
            node=1,
            gpu=2,
            onset=0.3 * seconds,
            duration=0.5 * seconds,
            magnitude=1.35,
        ),
        Fault(kind="nic_flap", node=2, gpu=1, onset=0.4 * seconds, duration=0.4 * seconds),
    )


def record(load: Load, path: Path) -> Story:
    """Write the messages of a load to a file in the order in which they are due, and process them here."""
    pipeline, runbooks = local_pipeline(), Settings().runbooks()
    found = []
    rows: Counter[Row] = Counter()
    dues: dict[Role, list[float]] = {role: [] for role in READS}
    with path.open("wb") as file:
        for at, made in in_order(load):
            topic, key, value, due = topic_of(made), key_of(made), encode(made), at - load.start
            sender = zlib.crc32(made.node.encode()) % SENDERS
            file.write(_HEAD.pack(due, sender, TOPICS.index(topic), len(key), len(value)) + key + value)
            for role in READS:
                if topic in READS[role]:
                    dues[role].append(due)
            rows.update(roll_up_rows([made]))
            found += pipeline.process(made)
    found += pipeline.finish()
    findings = {finding.id: document(with_runbook(finding, runbooks)) for finding in found}
    return Story(load, findings, rows, {role: np.array(times) for role, times in dues.items()})


def messages(path: Path) -> Iterator[tuple[float, int, str, bytes, bytes]]:
    """Yield second of the load, sender, topic, key and value of every message."""
    with path.open("rb", buffering=1 << 22) as file:
        while head := file.read(_HEAD.size):
            due, sender, topic, key, value = _HEAD.unpack(head)
            yield due, sender, TOPICS[topic], file.read(key), file.read(value)


def roll_up_rows(records: Iterable[Record]) -> Counter[Row]:
    """Count the records of each roll-up row, from the records and not by the code that rolls them up."""
    counts: Counter[Row] = Counter()
    for record in records:
        if isinstance(record, NodeSample):
            bucket = record.ts // 10 * 10
            counts.update(("samples_10s", record.node, gpu, bucket) for gpu in record.gpu_ids)
            counts.update(("nic_10s", record.node, nic, bucket) for nic in record.nic_ids)
            counts["host_10s", record.node, "", bucket] += 1
        elif isinstance(record, JobSteps):
            held = columns(STEP_SCHEMAS[record.schema].rows, record.rows)
            for rank, ts in zip(held["rank"].tolist(), held["ts"].tolist(), strict=True):
                counts["steps_10s", record.job_id, str(rank), ts // 10 * 10] += 1
    return counts
