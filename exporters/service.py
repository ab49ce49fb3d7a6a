"""The exporter's main loop: tick at a fixed phase of the clock, encode the records, spool the messages."""

import hashlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

from exporters.collector import Instant
from exporters.exporter import Exporter, NodeIdentity
from exporters.spool import Message, Spool
from slowrank.telemetry import JobSteps, NodeEvent, Record, encode
from slowrank.telemetry.topics import JOB_STEPS, NODE_EVENTS, NODE_SAMPLES, topic_name


class Schedule:
    """Ticks every ``interval`` seconds, at a phase derived from a hash of the node's name.

    The records of a fleet are so spread evenly over the interval, and a node keeps its phase over restarts.
    """

    def __init__(self, node: str, interval: float) -> None:
        digest = hashlib.sha256(node.encode()).digest()
        self._interval = interval
        self._phase = int.from_bytes(digest[:8], "big") / 2**64 * interval

    def next_after(self, monotonic: float) -> float:
        """Return the first tick later than ``monotonic``; ticks that were missed are left out."""
        ticks = (monotonic - self._phase) // self._interval + 1
        return self._phase + ticks * self._interval


def run(
    exporter: Exporter,
    spool: Spool,
    schedule: Schedule,
    *,
    stop: threading.Event,
    prefix: str,
    ticked: Callable[[], None] = lambda: None,
) -> None:
    """Tick until ``stop`` is set; ``ticked`` is called after each tick."""
    while not stop.wait(max(0.0, schedule.next_after(time.monotonic()) - time.monotonic())):
        once(exporter, spool, prefix=prefix)
        ticked()


def once(exporter: Exporter, spool: Spool, *, prefix: str) -> None:
    """Do one tick and spool its records."""
    now = Instant(wall=time.time(), monotonic=time.monotonic())
    records = exporter.tick(now, spool.stats(), spool.drops())
    spool.put([message(record, prefix) for record in records], now.monotonic)
    exporter.took(time.monotonic() - now.monotonic)


def message(record: Record, prefix: str = "") -> Message:
    """Return the Kafka message of ``record``: keyed by job for steps, by node for samples and events."""
    if isinstance(record, JobSteps):
        topic, key = JOB_STEPS, record.job_id
    elif isinstance(record, NodeEvent):
        topic, key = NODE_EVENTS, record.node
    else:
        topic, key = NODE_SAMPLES, record.node
    return Message(topic_name(topic, prefix), key.encode(), encode(record), record.boot_id, record.seq)


def identity(cluster: str, node: str, started_ns: int, proc: Path = Path("/proc")) -> NodeIdentity:
    """Return the identity of this exporter; ``boot_id`` combines the machine's boot and the process start."""
    try:
        boot = (proc / "sys/kernel/random/boot_id").read_text().strip()[:8]
    except OSError:
        boot = "unknown"
    return NodeIdentity(cluster=cluster, node=node, boot_id=f"{boot}-{started_ns // 1_000_000:x}")
