"""A case made of its ranks' cases: about their node, or about their tensor-parallel group."""

from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import reduce

from alerts.cases.case import Case
from alerts.cases.cost.slow_time import SlowTime
from alerts.cases.lifecycle import transition
from alerts.cases.source import Source
from alerts.config import FindingConfig
from alerts.finding import dedup_key
from slowrank.telemetry import Subject

# Chosen, of the time until evidence suffices: what takes long to show begins gradually or is small, and its
# onset is as vague. A ramp of 5 % in an hour shows after 30 minutes, on one rank of a node 8 before another.
_GRADUAL = 0.2


def slow_together(fresh: Iterable[Case], config: FindingConfig) -> tuple[Case, ...]:
    """Return the most cases that began together with their first one, in order of their onsets."""
    slow = sorted(fresh, key=lambda c: (c.since, c.key))
    best: tuple[Case, ...] = ()
    for number, first in enumerate(slow):
        window = tuple(c for c in slow[number:] if began_together(first, c, config))
        best = max(best, window, key=len)
    return best


def began_together(a: Case, b: Case, config: FindingConfig) -> bool:
    """Return whether the onsets of two cases are no further apart than two families' may be, or than they
    are uncertain."""
    return abs(a.since - b.since) <= max(config.agree_within_seconds, vagueness(a) + vagueness(b))


def vagueness(case: Case) -> float:
    """Return by how much the onset of a case may be wrong [s]: half its interval, or a share of the time that
    its evidence took."""
    shown = case.ready_at if case.ready_at is not None else case.opened_at
    taken = 0.0 if shown is None else max(shown - case.since, 0.0)
    return max((case.onset[2] - case.onset[1]) / 2, _GRADUAL * taken)


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
    again = replace(
        group,
        status=status,
        ended_at=None,
        since=min(m.since for m in members),
        slow=group.slow if group.live else group.slow.anew(),
        sustained=group.sustained and group.live,
    )
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
        slow=reduce(SlowTime.longest, (m.slow for m in members), group.slow),
        sustained=group.sustained or any(m.sustained for m in members),
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
