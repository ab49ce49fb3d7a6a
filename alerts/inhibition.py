"""Inhibition rules of users, as Alertmanager's: an open finding keeps others from webhooks."""

from collections.abc import Mapping
from dataclasses import dataclass

from alerts.silence import LabelName, Matcher

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inhibition:
    """While a finding that ``source`` matches is open, those that ``target`` matches are held back.

    Both must have the same values of the labels ``equal``; a missing label counts as empty.

    >>> rule = Inhibition(
    ...     id="inh_1",
    ...     source=(Matcher("kind", "node.silent"),),
    ...     target=(Matcher("severity", "warning|info", is_regex=True),),
    ...     equal=("cluster", "node"),
    ...     created_by="ops",
    ...     comment="a silent node explains what is seen of it",
    ... )
    >>> silent = {"kind": "node.silent", "severity": "error", "cluster": "a", "node": "n1"}
    >>> rule.holds({"kind": "clock.low", "severity": "warning", "cluster": "a", "node": "n1"}, silent)
    True
    >>> rule.holds({"kind": "clock.low", "severity": "warning", "cluster": "a", "node": "n2"}, silent)
    False
    """

    id: str
    source: tuple[Matcher, ...]
    target: tuple[Matcher, ...]
    equal: tuple[LabelName, ...]
    created_by: str
    comment: str

    def concerns(self, labels: Labels) -> bool:
        """Return whether a finding may be held back; one that matches both sides is not (no cycles)."""
        return _all_match(self.target, labels) and not _all_match(self.source, labels)

    def holds(self, labels: Labels, source: Labels) -> bool:
        """Return whether the open finding ``source`` holds back the one with ``labels``."""
        same = all(labels.get(name, "") == source.get(name, "") for name in self.equal)
        return same and self.concerns(labels) and _all_match(self.source, source)


def _all_match(matchers: tuple[Matcher, ...], labels: Labels) -> bool:
    return bool(matchers) and all(matcher.matches(labels) for matcher in matchers)
