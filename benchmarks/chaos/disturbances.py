"""What is done to an installation while telemetry flows."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from kafka.admin import KafkaAdminClient, NewPartitions

from benchmarks.capacity.installation import Installation
from slowrank.telemetry.topics import JOB_STEPS, NODE_EVENTS, NODE_SAMPLES, SUSPICIONS

OUTAGE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Disturbance:
    """``act`` returns when its own part is over: a broker is back, a worker killed and not yet replaced.

    ``prepare`` is called before telemetry flows; ``brokers``: how many there are.
    """

    what: str
    act: Callable[[Installation], None]
    brokers: int = 1
    prepare: Callable[[Installation], None] = lambda _: None


def _nothing(_: Installation) -> None:
    pass


def _kill(made: Installation) -> None:
    for role in ("detect", "sink"):
        (pid,) = made.alive(role)
        os.kill(pid, signal.SIGKILL)


def _freeze(made: Installation) -> None:
    (pid,) = made.alive("detect")
    os.kill(pid, signal.SIGSTOP)


def _database_away(made: Installation) -> None:
    """Hang the database, then cut its power."""
    made.database.pause()
    time.sleep(OUTAGE_SECONDS / 2)
    made.database.kill()
    time.sleep(OUTAGE_SECONDS / 2)
    made.database.start()


def _brokers_away(made: Installation) -> None:
    made.brokers.stop()
    time.sleep(OUTAGE_SECONDS)
    made.brokers.start()


def _leader_lost(made: Installation) -> None:
    made.brokers.kill(made.brokers.leader_of(NODE_SAMPLES, 0))


def _grow(made: Installation) -> None:
    """Give each topic twice as many partitions, as docs/operations.md says."""
    client = KafkaAdminClient(bootstrap_servers=made.bootstrap.split(","))
    count = 2 * int(made.environment["SLOWRANK_TOPIC_PARTITIONS"])
    try:
        topics = (NODE_SAMPLES, NODE_EVENTS, JOB_STEPS, SUSPICIONS)
        client.create_partitions({topic: NewPartitions(count) for topic in topics})
    finally:
        client.close()


def _restart_hosts(made: Installation) -> None:
    for host in made.hosts:
        made.restart_host(host)


DISTURBANCES = {
    "none": Disturbance("nothing", _nothing),
    "kill": Disturbance("`kill -9` of both workers", _kill),
    "freeze": Disturbance("the detect worker is frozen (SIGSTOP)", _freeze),
    "database": Disturbance("the database hangs for 15 s, then is without power for 15 s", _database_away),
    "brokers": Disturbance("the only broker is down for 30 s", _brokers_away),
    "leader": Disturbance("the leader of a partition is killed, 3 brokers", _leader_lost, brokers=3),
    "growth": Disturbance("topics grow to twice their partitions", _grow),
    "rolling": Disturbance(
        "workers of two hosts, restarted in turn", _restart_hosts, prepare=Installation.add_host
    ),
    "join": Disturbance("workers of a third host join", Installation.add_host, prepare=Installation.add_host),
}
