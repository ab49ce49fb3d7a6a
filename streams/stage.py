"""The interface of a stage, between the runners and the detection.

A stage is pure: it holds state by key, sees records and event time, and returns outputs. The Faust worker,
the in-process runner and the file replay drive the same objects, so that replay gives the same findings as
live.
"""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from alerts.finding import Finding
from slowrank.telemetry import JobEnded, Record, StageMessage

Input = Record | StageMessage | JobEnded
Output = StageMessage | Finding


class Stage(Protocol):
    """A keyed step of the topology."""

    def process(self, record: Input) -> Sequence[Output]:
        """Process one record of this stage's topic, in partition order; return its outputs.

        Never blocks, never raises on a record that passed the codec, reads no clock.
        """
        ...

    def tick(self, event_time: float) -> Sequence[Output]:
        """Advance event time (Unix seconds, the partition's watermark); called at least once a second of it.

        Outputs of a deadline are dated by it, not by the tick: ticking more often changes nothing.
        """
        ...


@runtime_checkable
class Buffering(Stage, Protocol):
    """A stage that keeps records back until their second of event time has passed."""

    def flush(self) -> Sequence[Output]:
        """Process the records still kept back: the stream has ended."""
        ...


@runtime_checkable
class Restorable(Stage, Protocol):
    """A stage that gives its state away and takes it back; the settings are no part of it."""

    def snapshot(self) -> Any:
        """Return the state itself, not a copy: it is to be saved before anything else is processed."""
        ...

    def restore(self, kept: Any) -> None:
        """Take what ``snapshot`` of a stage with equal settings returned, after saving and loading."""
        ...


@runtime_checkable
class Resumable(Stage, Protocol):
    """A stage that judges missing records."""

    def resume(self, event_time: float) -> None:
        """Judge nothing as missing before ``event_time``: it may have been sent and lost here.

        What was reported as missing before goes on.
        """
        ...
