"""Attribution of slow transfers of a job: to which port, link or machine, and how grave that makes it.

It is a port or PCIe link, or many of one rail, that became slow within a minute of the transfers; the one
machine that has all ranks with long transfers; or, where they are long in single steps, a port that goes down
again and again. Where machines are named for their long transfers, it is one of them.
"""

from collections.abc import Iterable, Set

from alerts.cases.case import Case, in_single_steps
from alerts.config import FindingConfig
from alerts.reasoning.fusion import confidence
from alerts.reasoning.sustained import worth_a_page
from alerts.report.severity import severity
from alerts.stated_severity import isolated
from slowrank.telemetry import Suspicion
from slowrank.telemetry.records import Severity

_BYTES = ("nic.port.rx_bytes_total", "nic.port.tx_bytes_total")

# Bytes a second of a port that slows its job, of what the job's pace leaves it. Chosen: where all transfers
# are slow, ports differ by some 6 %, by four times as much hardly ever.
_AT_MOST = 0.75


def slows(case: Case, job: Case, named: Set[str | None], config: FindingConfig) -> bool:
    """Return whether a reported case slows the transfers of the job, of which the nodes ``named`` have the
    slow ranks, where that is known."""
    window, row, node = config.agree_within_seconds, case.rule, case.subject.node
    if named and None not in named and node is not None and node not in named:
        return False
    slowing = named == {node} if row.steps_confirm else row.transfers == "slowing"
    if row.pages == "repeated":
        return slowing and _repeats(case) and _slow_again_and_again(job, case, window)
    return slowing and abs(case.since - job.since) <= window


def the_one_port(
    causes: Iterable[Case], job: Case, config: FindingConfig
) -> list[tuple[Case, list[Suspicion]]]:
    """Return the port that became slow with the transfers of the job, and what shows it; nothing where it is
    not alone."""
    named = {suspect.subject.node for s in job.suspicions() for suspect in s.suspects}
    pace = max((s.job_slowdown_ratio or 1.0 for s in job.suspicions()), default=1.0)
    slowing = [case for case in causes if case.live and slows(case, job, named, config)]
    signs = [(case, [s for s in case.suspicions() if _carries_less(s, pace)]) for case in slowing]
    signs = [(case, shown) for case, shown in signs if shown]
    return signs if len(signs) == 1 and signs[0][0].rule.confirmed_by_transfers else []


def _carries_less(s: Suspicion, pace: float) -> bool:
    """Return whether a port carries less than its job, which takes ``pace`` times as long, lets it;
    also where its bytes are not known."""
    rates = [
        (e.value, e.baseline.median) for e in s.evidence if e.metric in _BYTES and e.baseline is not None
    ]
    return all(pace * now <= _AT_MOST * before for now, before in rates)


def slows_alone(cause: Case, job: Case, found: Iterable[Case]) -> bool:
    """Return whether a port or PCIe link measurably slows the job, and no other machine may be why.

    Lost or late TCP segments, signs that need others beside them, and errors of ports of several machines may
    come from congestion.
    """
    if not job.rule.no_culprit or not job.hurts or cause.subject.type not in ("nic", "gpu"):
        return False
    if not (cause.rule.confirmed_by_transfers or any(s.overwhelming for s in cause.suspicions())):
        return False
    return cause.rule.transfers == "slowing" and {c.subject.node for c in found} == {cause.subject.node}


def harm(cause: Case, job: Case, config: FindingConfig) -> Severity:
    """Return the severity of a fault that slows its job's transfers.

    Only time and place say so: not critical before the job has been slow for as long as where step times
    alone accuse a machine.
    """
    return severity(
        cause.kind,
        cause.subject,
        own="warning",
        hurt=True,
        sustained=worth_a_page(job_slowdown=None, slow=job.slow, basis="other"),
        confidence=confidence(
            cause.suspicions(), config.prior_log_odds, basis="hardware", calibration=config.calibration
        ),
        basis="hardware",
    )


def _repeats(case: Case) -> bool:
    return not isolated(case.kind, (s.severity for s in case.suspicions()))


def _slow_again_and_again(job: Case, port: Case, window: float) -> bool:
    """Return whether transfers are slow in single steps, and the port went down as that began: which of the
    steps was the first is not well known, and the port may have gone down again since."""
    down = (port.first_onset, port.since)
    single = filter(in_single_steps, job.suspicions())
    return any(s.onset_lo - window <= at <= s.onset_hi + window for s in single for at in down)
