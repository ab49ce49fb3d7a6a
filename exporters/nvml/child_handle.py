"""One child that reads GPUs, and its unanswered requests."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from exporters.nvml.process import Child
from slowrank.telemetry.columns import Value


@dataclass(frozen=True, slots=True)
class Reply:
    """Values of the GPU at ``index`` and the seconds the read took; ``gone``: the driver has lost it."""

    index: int
    values: Mapping[str, Value]
    seconds: float
    identity: Mapping[str, str] = field(default_factory=dict)
    gone: bool = False


class Reader:
    """A child and the ``gpus`` that it reads, by index; None means all that it finds.

    Methods raise ``ChildGone`` when the child has ended, the constructor when it cannot be started.
    """

    def __init__(self, argv: Sequence[str], gpus: Iterable[int] | None) -> None:
        self.child = Child(argv)
        self.gpus = None if gpus is None else set(gpus)
        self.found: int | None = None
        """Number of GPUs that the child has found, None until it has reported it."""
        self.asked: dict[int, float] = {}
        """Time of the unanswered request, by GPU."""
        self.ended = False

    def ask(self, gpus: Collection[int], slow: Collection[int], now: float) -> None:
        """Request GPUs without an unanswered request; those in ``slow`` with the slow set of columns."""
        if gpus:
            self.child.send({"gpus": list(gpus), "slow": list(slow)})
            self.asked |= dict.fromkeys(gpus, now)

    def replies(self) -> Iterator[Reply]:
        """Yield the replies received so far, late ones too, of GPUs that are still assigned; do not wait."""
        for message in self.child.messages(0.0):
            if "gpus" in message:
                self.found = int(message["gpus"])
                continue
            reply = _reply(message)
            self.asked.pop(reply.index, None)
            if self.gpus is not None and reply.index in self.gpus:
                yield reply

    def kill(self) -> None:
        """Kill the child without waiting for its end."""
        self.ended = True
        self.child.kill()

    def overdue(self, now: float, limit: float) -> list[int]:
        """Return the GPUs whose request has been unanswered for more than ``limit`` seconds."""
        return [gpu for gpu, asked in self.asked.items() if now - asked > limit and gpu in (self.gpus or ())]

    def stalled(self, now: float, limit: float) -> bool:
        """Return whether all its GPUs have been overdue for more than ``limit`` seconds."""
        return bool(self.gpus) and len(self.overdue(now, limit)) == len(self.gpus or ())


def _reply(message: Mapping[str, Any]) -> Reply:
    return Reply(
        index=int(message["gpu"]),
        values=message["values"],
        seconds=float(message["seconds"]),
        identity=message.get("identity") or {},
        gone=bool(message.get("gone")),
    )
