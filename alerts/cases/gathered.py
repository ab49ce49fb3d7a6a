"""A case made of its ranks' cases: about their node, or about their tensor-parallel group."""

from collections.abc import Collection, Iterable
from dataclasses import replace

from alerts.cases.case import Case
from alerts.cases.lifecycle import transition
from alerts.cases.source import Source
from alerts.config import FindingConfig
from alerts.finding import dedup_key
from slowrank.telemetry import Subject


def slow_together(fresh: Iterable[Case], config: FindingConfig) -> tuple[Case, ...]:
    """Return the most cases that began within one window of time, in order of their onsets."""
    slow = sorted(fresh, key=lambda c: (c.since, c.key))
    best: tuple[Case, ...] = ()
    for first in slow:
        window = tuple(c for c in slow if 0 <= c.since - first.since <= config.agree_within_seconds)
        best = max(best, window, key=len)
    return best


def made(subject: Subject, members: tuple[Case, ...], ts: float) -> Case:
    """Return the case about ``subject`` that ``members``, in order of their onsets, are the first to make."""
    first = members[0]
    fresh = Case(
        key=dedup_key(subject, first.kind),
        kind=first.kind,
        subject=subject,
        first_seen_at=ts,
        first_onset=first.onset[0],
        onset=_onset(members),
        since=first.since,
        last_seen_at=ts,
        sources={},
        made_of_ranks=True,
    )
    return refreshed(fresh, members)


def revived(group: Case, members: Collection[Case]) -> Case:
    """Return a case that had ended, or was about to, of members that are slow again."""
    status = transition(group.status, "raised_again")
    again = replace(group, status=status, ended_at=None, since=min(m.since for m in members))
    return refreshed(again, members)


def refreshed(group: Case, members: Collection[Case]) -> Case:
    """Return the case brought up to date with its members."""
    if not members:
        return group
    quiet = not any(m.active for m in members)
    ended = max(m.cleared_at or 0.0 for m in members) if quiet else None
    return replace(
        group,
        sources=gathered_sources(members, ended),
        last_seen_at=max(m.last_seen_at for m in members),
        cleared_at=ended,
        flaps=max(m.flaps for m in members),
        hurts=any(m.hurts for m in members),
    )


def gathered_sources(members: Iterable[Case], ended: float | None) -> dict[str, Source]:
    """Return the members' current sources; once all have cleared, as if all cleared at ``ended``."""
    return {
        # Confirmed: each member has compared its own sources already.
        f"{m.key}|{name}": replace(source, until=source.until if ended is None else ended, confirmed=True)
        for m in members
        for name, source in m.current.items()
    }


def _onset(members: tuple[Case, ...]) -> tuple[float, float, float]:
    """Return the onset of the middle rank: one may have been in trouble before the others."""
    return sorted(m.onset for m in members)[(len(members) - 1) // 2]
