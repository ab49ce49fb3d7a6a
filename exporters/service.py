"""The running exporter: ticks at a fixed phase of the clock, records to messages, messages to the spool."""

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
    """Ticks every ``interval`` seconds, at a phase of the interval that the node's name decides.

    A fleet so spreads its records evenly, and one node keeps its own rhythm over restarts.
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
    """Do one tick and spool what came of it."""
    now = Instant(wall=time.time(), monotonic=time.monotonic())
    records = exporter.tick(now, spool.stats(), spool.losses())
    spool.put([message(record, prefix) for record in records], now.monotonic)
    exporter.took(time.monotonic() - now.monotonic)


def message(record: Record, prefix: str = "") -> Message:
    """Return ``record`` as Kafka takes it: the topic and key that keep together what belongs together."""
    if isinstance(record, JobSteps):
        topic, key = JOB_STEPS, record.job_id
    elif isinstance(record, NodeEvent):
        topic, key = NODE_EVENTS, record.node
    else:
        topic, key = NODE_SAMPLES, record.node
    return Message(topic_name(topic, prefix), key.encode(), encode(record), record.boot_id, record.seq)


def identity(cluster: str, node: str, started_ns: int, proc: Path = Path("/proc")) -> NodeIdentity:
    """Return who this exporter is: the boot of the machine and the start of this process make ``boot_id``."""
    try:
        boot = (proc / "sys/kernel/random/boot_id").read_text().strip()[:8]
    except OSError:
        boot = "unknown"
    return NodeIdentity(cluster=cluster, node=node, boot_id=f"{boot}-{started_ns // 1_000_000:x}")
