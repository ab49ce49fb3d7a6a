"""An incident as a case: made from what its detector said, revived, and kept up to date with its members."""

import math
from dataclasses import replace

import msgspec

from alerts.cases.account import Account
from alerts.cases.case import Case
from alerts.cases.gathered import gathered_sources
from alerts.cases.lifecycle import transition
from alerts.cases.source import Source
from slowrank.telemetry import Suspicion
from streams.cluster.incident_kinds import EVERYWHERE


def made(key: str, word: Suspicion) -> Case:
    return Case(
        key=key,
        kind=word.kind,
        subject=word.subject,
        first_seen_at=word.ts,
        first_onset=word.onset,
        onset=(word.onset, word.onset_lo, word.onset_hi),
        since=word.onset,
        last_seen_at=word.ts,
        sources={"domains": Source(word)},
        status="open",
        opened_at=word.ts,
        account=Account(accrued_to=word.onset),
    )


def revived(before: Case | None, word: Suspicion) -> Case | None:
    if before is None:
        return None
    status = transition(transition(before.status, "raised_again"), "corroborated")
    return replace(
        before,
        status=status,
        since=word.onset,
        last_seen_at=word.ts,
        ended_at=None,
        cleared_at=None,
        occurrences=before.occurrences + 1,
        sources={"domains": Source(word)},
    )


def suspected(before: Case | None, incident: Case, word: Suspicion) -> Case:
    """Return an incident that is no finding yet, or not again: its evidence alone opens nothing."""
    opened_at, occurrences = (None, 1) if before is None else (before.opened_at, before.occurrences)
    weak = msgspec.structs.replace(word, overwhelming=False, log_likelihood_ratio=0.0)
    sources = {"domains": Source(weak)}
    return replace(
        incident, status="suspected", opened_at=opened_at, occurrences=occurrences, sources=sources
    )


def opened(incident: Case, word: Suspicion) -> Case:
    """Return a suspected incident as the finding that it has become."""
    again = incident.opened_at is not None
    return replace(
        incident,
        status=transition(incident.status, "corroborated"),
        opened_at=incident.opened_at if again else word.ts,
        occurrences=incident.occurrences + again,
        sources={"domains": Source(word)},
    )


def superseded(incident: Case, ts: float) -> Case:
    """Return an incident whose members are all part of a larger one."""
    status = transition(incident.status, "absorbed")
    return replace(incident.all_cleared(ts), status=status, ended_at=ts)


def summed(incident: Case, members: list[Case]) -> Case:
    active = any(m.active for m in members)
    # Thousands of silent nodes are no more evidence than their number.
    speaking = [] if incident.subject.type in EVERYWHERE else members
    ended = None if active else max(m.cleared_at or 0.0 for m in members)
    sources = gathered_sources(speaking, ended)
    sources["domains"] = replace(incident.sources["domains"], until=math.inf if ended is None else ended)
    return replace(
        incident,
        sources=sources,
        onset=min(incident.onset, *(m.onset for m in members)),
        last_seen_at=max(m.last_seen_at for m in members),
        cleared_at=ended,
        flaps=max(m.flaps for m in members),
        hurts=any(m.hurts for m in members),
        account=replace(
            incident.account,
            lost=max(incident.account.lost, math.fsum(m.account.lost for m in members)),
            rate=math.fsum(m.account.rate for m in members),
        ),
    )
