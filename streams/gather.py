"""Samples gathered until the second they belong to has passed, so that a fleet is handled at once."""

from collections.abc import Sequence
from typing import Protocol

from slowrank.telemetry import NodeSample, Record, Suspicion
from streams.stage import Output, Stage


class Many(Stage, Protocol):
    """A stage that takes records in any number, with the outputs of taking them one by one."""

    def process_many(self, records: Sequence[Record | Suspicion]) -> list[Output]: ...


class Gathered:
    """Hands the node samples of a stage on when the next second of event time has passed, before the tick.

    What a sample gives rise to then comes out with a later record. Nothing is lost by that: the samples that
    wait are part of the stage's state, which is rebuilt from the log like the rest of it, and it is the
    later record, acknowledged after its outputs, that brings them out.
    """

    def __init__(self, stage: Many) -> None:
        self._stage = stage
        self._samples: list[Record | Suspicion] = []

    def process(self, record: Record | Suspicion) -> Sequence[Output]:
        """Keep a sample; take anything else at once."""
        if not isinstance(record, NodeSample):
            return self._stage.process(record)
        self._samples.append(record)
        return ()

    def tick(self, event_time: float) -> Sequence[Output]:
        """Take what has been gathered, and let event time pass."""
        samples, self._samples = self._samples, []
        found = self._stage.process_many(samples) if samples else []
        return [*found, *self._stage.tick(event_time)]
