"""Holds samples back until their second of event time has passed, so that a fleet is processed at once."""

from collections.abc import Sequence
from typing import Protocol

from slowrank.telemetry import NodeSample
from streams.stage import Input, Output, Resumable, Stage


class BatchStage(Stage, Protocol):
    """A stage that processes many records at once, with the outputs of processing them one by one."""

    def process_many(self, records: Sequence[Input]) -> list[Output]: ...


class BatchBySecond:
    """Collects node samples and processes them when their second of event time has passed, before the tick.

    The outputs of a sample then come with a later record. None is lost in a crash: waiting samples are part
    of the state that is rebuilt from the log, and the later record is acknowledged only after its outputs.
    For that a sample may not wait here where it does not in a rebuilt state: where event time has passed
    without records, which is not in the log, ``PartitionState`` flushes.
    """

    def __init__(self, stage: BatchStage) -> None:
        self._stage = stage
        self._samples: list[NodeSample] = []

    def process(self, record: Input) -> Sequence[Output]:
        """Keep a sample; process any other record at once."""
        if not isinstance(record, NodeSample):
            return self._stage.process(record)
        self._samples.append(record)
        return ()

    def tick(self, event_time: float) -> Sequence[Output]:
        """Process the samples that are due, and advance event time."""
        samples, self._samples = _split(self._samples, event_time)
        found = self._stage.process_many(samples) if samples else []
        return [*found, *self._stage.tick(event_time)]

    def flush(self) -> Sequence[Output]:
        """Process all samples left at the end of the stream."""
        samples, self._samples = self._samples, []
        return self._stage.process_many(samples) if samples else ()

    def resume(self, event_time: float) -> None:
        """Resume the stage: records of before ``event_time`` may be lost."""
        if isinstance(self._stage, Resumable):
            self._stage.resume(event_time)


def _split(samples: Sequence[NodeSample], now: float) -> tuple[list[NodeSample], list[NodeSample]]:
    """Return the samples to process ``now``, and those of the second that has just begun.

    With the latter many nodes would be in two batches, and a batch of one costs nearly as much as a fleet.
    The samples of a node whose clock is further ahead are not held back.
    """
    ahead = {(s.cluster, s.node) for s in samples if s.ts > now + 1.0}
    taken: list[NodeSample] = []
    left: list[NodeSample] = []
    for s in samples:
        (left if s.ts > now and (s.cluster, s.node) not in ahead else taken).append(s)
    return taken, left
