"""One child that reads GPUs, and what was asked of it and not answered yet."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from exporters.nvml.process import Child
from slowrank.telemetry.columns import Value


@dataclass(frozen=True, slots=True)
class Reply:
    """What was read of the GPU at ``index`` and how long (seconds) that took; ``gone``: it is not there."""

    index: int
    values: Mapping[str, Value]
    seconds: float
    identity: Mapping[str, str] = field(default_factory=dict)
    gone: bool = False


class Reader:
    """A child and the ``gpus`` that it is in charge of, by index; None are all that it finds.

    All but the start raise ``ChildGone`` when the child has ended; so does the start where there is none.
    """

    def __init__(self, argv: Sequence[str], gpus: Iterable[int] | None) -> None:
        self.child = Child(argv)
        self.gpus = None if gpus is None else set(gpus)
        self.found: int | None = None
        """How many GPUs the child has found, None until it has reported it."""
        self.asked: dict[int, float] = {}
        """By GPU, when it was asked for what it has not answered yet."""
        self.ended = False

    def ask(self, gpus: Collection[int], slow: Collection[int], now: float) -> None:
        """Ask for GPUs of which no answer is awaited; those in ``slow`` with all that is seldom read."""
        if gpus:
            self.child.send({"gpus": list(gpus), "slow": list(slow)})
            self.asked |= dict.fromkeys(gpus, now)

    def replies(self) -> Iterator[Reply]:
        """Yield what has come, without waiting: also late answers, of GPUs that it still is in charge of."""
        for message in self.child.messages(0.0):
            if "gpus" in message:
                self.found = int(message["gpus"])
                continue
            reply = _reply(message)
            self.asked.pop(reply.index, None)
            if self.gpus is not None and reply.index in self.gpus:
                yield reply

    def kill(self) -> None:
        """End the child without waiting for it; nothing is asked of it any more."""
        self.ended = True
        self.child.kill()

    def overdue(self, now: float, limit: float) -> list[int]:
        """Return the GPUs that have not answered for more than ``limit`` seconds."""
        return [gpu for gpu, asked in self.asked.items() if now - asked > limit and gpu in (self.gpus or ())]

    def stalled(self, now: float, limit: float) -> bool:
        """Return whether it owes the answers of all its GPUs for more than ``limit`` seconds."""
        return bool(self.gpus) and len(self.overdue(now, limit)) == len(self.gpus or ())


def _reply(message: Mapping[str, Any]) -> Reply:
    return Reply(
        index=int(message["gpu"]),
        values=message["values"],
        seconds=float(message["seconds"]),
        identity=message.get("identity") or {},
        gone=bool(message.get("gone")),
    )
