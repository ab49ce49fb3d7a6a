"""Differences between the findings of two tunings on the same records, matched by cause."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal

import msgspec

from alerts.cases.shadow import SUFFIX
from alerts.finding import Finding, rfc3339

Change = Literal["opened", "gone", "changed", "same"]

# Compared fields: those that people act on.
_SHOWN = ("kind", "severity", "status", "shadow", "onset", "detected_at", "slowdown_ratio", "confidence")


@dataclass(frozen=True, slots=True)
class Difference:
    """One finding before and after, None where missing; ``fields`` are the compared fields that changed."""

    before: Finding | None
    after: Finding | None
    fields: tuple[str, ...] = ()

    @property
    def change(self) -> Change:
        """The kind of difference."""
        if self.before is None:
            return "opened"
        if self.after is None:
            return "gone"
        return "changed" if self.fields else "same"

    @property
    def finding(self) -> Finding:
        """The finding after, or before where it is gone."""
        found = self.after or self.before
        assert found is not None
        return found

    def line(self) -> str:
        """Return the difference as text."""
        finding, before, after = self.finding, self.before, self.after
        text = f"{self.change:<8} {rfc3339(finding.onset)}  {finding.severity:<8} {finding.title}"
        if before is not None and after is not None:
            text += "".join(f"\n    {n}: {_value(before, n)} -> {_value(after, n)}" for n in self.fields)
        return f"{text} (in shadow)" if finding.shadow and not self.fields else text

    def to_json(self) -> dict[str, Any]:
        """Return the difference JSON-ready, with both findings in full."""
        sides = {"before": self.before, "after": self.after}
        findings = {name: None if f is None else f.to_json() for name, f in sides.items()}
        return {"change": self.change, "fields": list(self.fields)} | findings


def compare(before: Iterable[Finding], after: Iterable[Finding]) -> list[Difference]:
    """Return the difference of each finding, in order of onset; a finding now in shadow is the same one."""
    pairs: list[Difference] = []
    old, new = _by_cause(before), _by_cause(after)
    for cause in old.keys() | new.keys():
        pairs += _matched(old[cause], new[cause])
    return sorted(pairs, key=lambda d: (d.finding.onset, d.finding.dedup_key))


def differences_ndjson(differences: Iterable[Difference]) -> bytes:
    """Return a line for each finding that differs."""
    return b"".join(msgspec.json.encode(d.to_json()) + b"\n" for d in differences if d.change != "same")


def _by_cause(findings: Iterable[Finding]) -> dict[str, list[Finding]]:
    causes: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        causes[finding.dedup_key.removesuffix(SUFFIX)].append(finding)
    return causes


def _matched(before: Sequence[Finding], after: Sequence[Finding]) -> list[Difference]:
    """Pair findings of one cause: the same id is the same finding, the others follow each other in time."""
    kept = {f.id: f for f in after}
    same = {f.id for f in before} & kept.keys()
    pairs = [_difference(f, kept[f.id]) for f in before if f.id in same]
    rest = [sorted((f for f in side if f.id not in same), key=lambda f: f.onset) for side in (before, after)]
    return pairs + [_difference(a, b) for a, b in zip_longest(*rest)]


def _difference(before: Finding | None, after: Finding | None) -> Difference:
    if before is None or after is None:
        return Difference(before, after)
    changed = tuple(n for n in _SHOWN if getattr(before, n) != getattr(after, n))
    return Difference(before, after, changed)


def _value(finding: Finding, name: str) -> Any:
    value = getattr(finding, name)
    return rfc3339(value) if name in ("onset", "detected_at") else value
