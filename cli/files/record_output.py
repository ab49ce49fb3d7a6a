"""Output of records by a command: at a multiple of real time, and to Kafka."""

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from cli.remote.client import fail

if TYPE_CHECKING:
    from slowrank.settings import Settings
    from slowrank.telemetry import Record

Speed = Annotated[str, typer.Option(help="Multiple of real time, such as 60x; max = no waiting.")]


def paced_output(records: "Iterable[Record]", speed: str) -> "Iterable[Record]":
    """Yield records at a multiple of real time; an invalid ``speed`` ends the command."""
    from streams.files.replay import paced

    factor = speed_factor(speed)
    if factor == float("inf"):
        return records
    return paced(records, speed=factor, clock=time.monotonic, sleep=time.sleep)


def speed_factor(speed: str) -> float:
    """Return ``speed`` as a number, infinity for ``max``; an invalid one ends the command."""
    if speed == "max":
        return float("inf")
    try:
        factor = float(speed.removesuffix("x"))
    except ValueError:
        factor = 0.0
    if not 0 < factor < float("inf"):
        fail(f"--speed {speed}: give a multiple such as 60x, or max")
    return factor


def to_kafka(records: "Iterable[Record]", settings: "Settings") -> int:
    """Send records to their topics and return their count; exit when the brokers do not accept them."""
    import asyncio

    from streams.runtime.kafka.record_producer import SendProblem, send

    try:
        return asyncio.run(send(records, bootstrap=settings.kafka_bootstrap, prefix=settings.topic_prefix))
    except SendProblem as error:
        fail(str(error))
