"""Names, keys and retention of the Kafka topics."""

from dataclasses import dataclass

NODE_SAMPLES = "node-samples"
NODE_EVENTS = "node-events"
JOB_STEPS = "job-steps"
SUSPICIONS = "suspicions"
DEAD_LETTERS = "dead-letters"

HOUR_MS = 3600 * 1000


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """One topic as `slowrank topics create` creates it.

    ``key`` is the field of the record that partitions it: change points need all records of a node in one
    partition, peer comparison all ranks of a job, fusion all suspicions of a cluster.
    """

    name: str
    key: str
    retention_hours: int

    @property
    def configs(self) -> dict[str, str]:
        """Settings on the broker; time stamps are those of the log, which include the delay of the sender."""
        return {
            "retention.ms": str(self.retention_hours * HOUR_MS),
            # Kafka counts a compressed batch here; one record has at most 256 kB (checks.MAX_MESSAGE_BYTES).
            "max.message.bytes": str(1 << 20),
            "message.timestamp.type": "LogAppendTime",
        }


# Longer than workers read again after a restart (streams_rebuild_minutes).
TOPICS = (
    TopicSpec(NODE_SAMPLES, key="node", retention_hours=24),
    TopicSpec(NODE_EVENTS, key="node", retention_hours=72),
    TopicSpec(JOB_STEPS, key="job_id", retention_hours=24),
    TopicSpec(SUSPICIONS, key="cluster", retention_hours=72),
    TopicSpec(DEAD_LETTERS, key="", retention_hours=168),
)


def topic_name(name: str, prefix: str = "") -> str:
    """Return the name on the broker: ``prefix`` lets several installations share one Kafka cluster."""
    return f"{prefix}{name}"
