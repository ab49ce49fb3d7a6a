"""Holds samples back until their second of event time has passed, so that a fleet is processed at once."""

from collections.abc import Sequence
from typing import Protocol

from slowrank.telemetry import NodeSample
from streams.stage import Input, Output, Stage


class Many(Stage, Protocol):
    """A stage that takes records in any number, with the outputs of taking them one by one."""

    def process_many(self, records: Sequence[Input]) -> list[Output]: ...


class Gathered:
    """Hands the node samples of a stage on when the second of event time in which they are has passed, before
    the tick.

    What a sample gives rise to then comes out with a later record. Nothing is lost by that: the samples that
    wait are part of the stage's state, which is rebuilt from the log like the rest of it, and it is the
    later record, acknowledged after its outputs, that brings them out.
    """

    def __init__(self, stage: Many) -> None:
        self._stage = stage
        self._samples: list[NodeSample] = []

    def process(self, record: Input) -> Sequence[Output]:
        """Keep a sample; take anything else at once."""
        if not isinstance(record, NodeSample):
            return self._stage.process(record)
        self._samples.append(record)
        return ()

    def tick(self, event_time: float) -> Sequence[Output]:
        """Take what has been gathered, and let event time pass."""
        samples, self._samples = _split(self._samples, event_time)
        found = self._stage.process_many(samples) if samples else []
        return [*found, *self._stage.tick(event_time)]

    def flush(self) -> Sequence[Output]:
        """Take what is left at the end of the stream."""
        samples, self._samples = self._samples, []
        return self._stage.process_many(samples) if samples else ()


def _split(samples: Sequence[NodeSample], now: float) -> tuple[list[NodeSample], list[NodeSample]]:
    """Return the samples to take ``now``, and those of the second that has just begun.

    With these many nodes would come twice, and one sample by itself costs nearly as much as a fleet's. A node
    whose clock is further ahead does not wait for the others to come so far.
    """
    ahead = {(s.cluster, s.node) for s in samples if s.ts > now + 1.0}
    taken: list[NodeSample] = []
    left: list[NodeSample] = []
    for s in samples:
        (left if s.ts > now and (s.cluster, s.node) not in ahead else taken).append(s)
    return taken, left
