"""Messages that could not be used, with position and reason, to be inspected and sent again."""

from slowrank.telemetry import BadRecord, DeadLetter, encode
from slowrank.telemetry.checks import DEAD_LETTER_BYTES
from streams.runtime.kafka.message import Message, Outgoing

STAGE_ERROR = "stage_error"
STORE_REFUSED = "store_refused"


def dead_letter(message: Message, error: BadRecord, *, topic: str) -> Outgoing:
    """Return the dead letter of ``message`` for the topic ``topic``."""
    letter = DeadLetter(
        topic=message.topic,
        partition=message.partition,
        offset=message.offset,
        ts=message.timestamp,
        reason=error.reason,
        detail=error.detail[:500],
        payload=message.value[:DEAD_LETTER_BYTES],
    )
    headers = {
        "x-original-topic": message.topic,
        "x-original-partition": str(message.partition),
        "x-original-offset": str(message.offset),
        "x-original-timestamp": f"{message.timestamp:.3f}",
        "x-error": error.reason,
        "x-error-detail": error.detail[:200],
    }
    key = f"{message.topic}:{message.partition}:{message.offset}"
    return Outgoing(topic, key.encode(), encode(letter), [(k, v.encode()) for k, v in headers.items()])
