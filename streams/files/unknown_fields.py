"""Fields of rows that slowrank does not have: they are ignored, and named so that a slip is noticed."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from slowrank.telemetry.names import (
    COORDS,
    EVENT_FIELDS,
    OPEN_STEP_FIELDS,
    SAMPLE_FIELDS,
    STEP_FIELDS,
    SUBJECT_FIELDS,
    likely,
)

Part = Literal["step", "coords", "open_step", "sample", "event", "subject"]
"""A kind of row, or an object inside of one."""

_PARTS: Mapping[Part, tuple[str, tuple[str, ...]]] = {
    "step": ("step rows", STEP_FIELDS),
    "coords": ("coords of step rows", COORDS),
    "open_step": ("open_step rows", OPEN_STEP_FIELDS),
    "sample": ("sample rows", SAMPLE_FIELDS),
    "event": ("event rows", tuple(dict.fromkeys((*EVENT_FIELDS, *SUBJECT_FIELDS)))),
    "subject": ("the subject of event rows", SUBJECT_FIELDS),
}
_KNOWN = {part: frozenset(valid) for part, (_, valid) in _PARTS.items()}

# Unknown fields that are named of each part. Chosen: enough for a message.
MOST_UNKNOWN = 8


@dataclass(slots=True)
class UnknownFields:
    """The names of unknown fields, by where they stand."""

    names: dict[Part, set[str]] = field(default_factory=dict)

    def note(self, part: Part, row: Mapping[str, Any]) -> None:
        """Remember the unknown fields of a row, or of an object inside of it, that have a value."""
        if row.keys() <= _KNOWN[part]:
            return
        held = self.names.get(part, set())
        if len(held) < MOST_UNKNOWN:
            found = {str(name) for name in row.keys() - _KNOWN[part] if row[name] is not None}
            if found:
                self.names[part] = held | found

    def sentences(self) -> Iterator[str]:
        """Yield a sentence for each kind of row, with the names that may be meant."""
        for part, (what, valid) in _PARTS.items():
            if names := sorted(self.names.get(part, ())):
                listed = ", ".join(f"{name[:40]!r}{likely(name, valid)}" for name in names)
                yield f"unknown fields of {what} were ignored: {listed}"
