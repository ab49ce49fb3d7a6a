"""The port through which the page of a demo breaks something in its simulated cluster."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Choice:
    """Something to break: its name in the form, what it does, and the key that chooses it."""

    name: str
    title: str
    key: str


@dataclass(frozen=True, slots=True)
class Broken:
    """Something that was broken ``at`` a time, and the finding about it after ``seconds``, if there is one.

    ``benign``: nothing is at fault, so that a finding is a false alarm.
    """

    at: datetime
    title: str
    benign: bool
    finding: str | None = None
    seconds: float | None = None


class Breakable(Protocol):
    """A simulated cluster. Both methods are called by threads of the API and return at once."""

    choices: Sequence[Choice]

    def begin(self, name: str) -> None:
        """Break what ``name`` chooses. Raises ``ValueError`` where it is unknown, or broken already."""

    def begun(self) -> Sequence[Broken]:
        """Return what was broken, the latest first."""
