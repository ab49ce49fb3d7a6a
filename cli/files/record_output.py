"""Records on their way out of a command: at a chosen speed, and to Kafka."""

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from slowrank.cli.remote import fail

if TYPE_CHECKING:
    from slowrank.settings import Settings
    from slowrank.telemetry import Record

Speed = Annotated[str, typer.Option(help="Multiple of real time, such as 60x; max = no waiting.")]


def at_speed(records: "Iterable[Record]", speed: str) -> "Iterable[Record]":
    """Yield records as many times faster than they happened as ``speed`` says; a bad one ends the command."""
    from streams.replay import paced

    factor = multiple(speed)
    if factor == float("inf"):
        return records
    return paced(records, speed=factor, clock=time.monotonic, sleep=time.sleep)


def multiple(speed: str) -> float:
    """Return the multiple of real time ``speed`` says, infinity for ``max``; a bad one ends the command."""
    if speed == "max":
        return float("inf")
    try:
        factor = float(speed.removesuffix("x"))
    except ValueError:
        factor = 0.0
    if not 0 < factor < float("inf"):
        fail(f"--speed {speed}: want a multiple such as 60x, or max")
    return factor


def to_kafka(records: "Iterable[Record]", settings: "Settings") -> int:
    """Send records to their topics and return how many; brokers that do not take them end the command."""
    import asyncio

    from streams.sender import SendProblem, send

    try:
        return asyncio.run(send(records, bootstrap=settings.kafka_bootstrap, prefix=settings.topic_prefix))
    except SendProblem as error:
        fail(str(error))
