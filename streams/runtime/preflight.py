"""Checks before a worker starts: brokers, topics and the database schema."""

import asyncio
import logging
import time
from collections.abc import Coroutine
from functools import partial
from typing import TypeVar

from aiokafka.errors import KafkaError

from slowrank.settings import Settings
from slowrank.telemetry.topics import DEAD_LETTERS, SUSPICIONS, topic_name
from store.schema import lacks_schema
from streams.runtime.faust_app import READS, Role, group
from streams.runtime.kafka.offsets import Probe
from streams.runtime.private_folder import Unprepared

log = logging.getLogger(__name__)

T = TypeVar("T")

# Between two attempts to reach Kafka, and two log lines about it. Chosen: little delay, few lines.
RETRY_SECONDS = 2.0
LOG_SECONDS = 30.0


def await_kafka(settings: Settings, role: Role) -> None:
    """Block until a broker answers; log why none does, at first and every ``LOG_SECONDS``.

    Faust ends at its first failed connection, with a traceback.
    """
    logged = -LOG_SECONDS
    while error := _run(_kafka_error(settings, role)):
        if time.monotonic() - logged >= LOG_SECONDS:
            logged = time.monotonic()
            log.warning(
                "no Kafka at %s, the %s worker waits for it: %s. Start Kafka, or name another by "
                "SLOWRANK_KAFKA_BOOTSTRAP.",
                settings.kafka_bootstrap,
                role,
                error,
            )
        time.sleep(RETRY_SECONDS)


async def _kafka_error(settings: Settings, role: Role) -> KafkaError | None:
    probe = Probe(settings.kafka_bootstrap, group(settings, role))
    try:
        await probe.partitions({topic_name(SUSPICIONS, prefix=settings.topic_prefix)})
    except KafkaError as error:
        return error
    finally:
        await probe.close()
    return None


def require(settings: Settings, role: Role) -> None:
    """Raise ``Unprepared`` when topics or the database schema that the role needs are missing.

    A consumer that starts without its topics looks for them again only after minutes. A server that does not
    answer is no error: a worker waits for it.
    """
    missing = _run(_missing(settings, role))
    if missing:
        names = ", ".join(missing)
        raise Unprepared(f"{settings.kafka_bootstrap} has no topic {names}: run `slowrank topics create`")
    if role == "sink" and lacks_schema(settings.dsn()):
        raise Unprepared("the database has no slowrank schema: run `slowrank migrate`")


def _run(work: Coroutine[None, None, T]) -> T:
    # asyncio.run would leave the thread without a current event loop, which Faust needs.
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


async def _missing(settings: Settings, role: Role) -> list[str]:
    name = partial(topic_name, prefix=settings.topic_prefix)
    wanted = {name(topic) for topic in (*READS[role], SUSPICIONS, DEAD_LETTERS)}
    probe = Probe(settings.kafka_bootstrap, group(settings, role))
    try:
        return sorted(wanted.difference(topic for topic, _ in await probe.partitions(wanted)))
    except KafkaError:
        return []
    finally:
        await probe.close()
