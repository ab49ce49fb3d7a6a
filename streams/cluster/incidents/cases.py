"""An incident as a case: made from its suspicion, revived, and kept up to date with its members."""

import math
from dataclasses import replace
from functools import reduce

import msgspec

from alerts.cases.case import Case
from alerts.cases.cost.gpu_hours_lost import GpuHoursLost
from alerts.cases.cost.slow_time import SlowTime
from alerts.cases.gathered import gathered_sources
from alerts.cases.lifecycle import transition
from alerts.cases.source import Source
from slowrank.telemetry import Suspicion
from streams.cluster.incidents.kinds import EVERYWHERE


def made(key: str, suspicion: Suspicion) -> Case:
    """Return a new incident, open from the start."""
    return Case(
        key=key,
        kind=suspicion.kind,
        subject=suspicion.subject,
        first_seen_at=suspicion.ts,
        first_onset=suspicion.onset,
        onset=(suspicion.onset, suspicion.onset_lo, suspicion.onset_hi),
        since=suspicion.onset,
        last_seen_at=suspicion.ts,
        sources={"domains": Source(suspicion)},
        status="open",
        opened_at=suspicion.ts,
        account=GpuHoursLost(accrued_to=suspicion.onset),
    )


def revived(before: Case | None, suspicion: Suspicion) -> Case | None:
    """Return an earlier incident as one that has come back, None if there was none."""
    if before is None:
        return None
    status = transition(transition(before.status, "raised_again"), "corroborated")
    return replace(
        before,
        status=status,
        since=suspicion.onset,
        last_seen_at=suspicion.ts,
        ended_at=None,
        cleared_at=None,
        occurrences=before.occurrences + 1,
        slow=before.slow.anew(),
        sustained=False,
        sources={"domains": Source(suspicion)},
    )


def suspected(before: Case | None, incident: Case, suspicion: Suspicion) -> Case:
    """Return an incident that is no finding yet, or not again: its evidence alone opens nothing."""
    opened_at, occurrences = (None, 1) if before is None else (before.opened_at, before.occurrences)
    weak = msgspec.structs.replace(suspicion, overwhelming=False, log_likelihood_ratio=0.0)
    sources = {"domains": Source(weak)}
    return replace(
        incident, status="suspected", opened_at=opened_at, occurrences=occurrences, sources=sources
    )


def opened(incident: Case, suspicion: Suspicion) -> Case:
    """Return a suspected incident as the finding that it has become."""
    again = incident.opened_at is not None
    return replace(
        incident,
        status=transition(incident.status, "corroborated"),
        opened_at=incident.opened_at if again else suspicion.ts,
        occurrences=incident.occurrences + again,
        sources={"domains": Source(suspicion)},
    )


def superseded(incident: Case, ts: float) -> Case:
    """Return an incident whose members are all part of a larger one."""
    status = transition(incident.status, "absorbed")
    return replace(incident.all_cleared(ts), status=status, ended_at=ts)


def summed(incident: Case, members: list[Case]) -> Case:
    """Return an incident with the evidence, times and losses of its members."""
    active = any(m.active for m in members)
    # The number of silent nodes is the evidence; those of thousands of cases add nothing to it.
    shown = [] if incident.subject.type in EVERYWHERE else members
    ended = None if active else max(m.cleared_at or 0.0 for m in members)
    sources = gathered_sources(shown, ended)
    sources["domains"] = replace(incident.sources["domains"], until=math.inf if ended is None else ended)
    return replace(
        incident,
        sources=sources,
        onset=min(incident.onset, *(m.onset for m in members)),
        last_seen_at=max(m.last_seen_at for m in members),
        cleared_at=ended,
        flaps=max(m.flaps for m in members),
        hurts=any(m.hurts for m in members),
        slow=reduce(SlowTime.longest, (m.slow for m in members), incident.slow),
        account=replace(
            incident.account,
            lost=max(incident.account.lost, math.fsum(m.account.lost for m in members)),
            rate=math.fsum(m.account.rate for m in members),
        ),
    )
