"""Attribution of slow transfers of a job: to which port, link or machine.

It is a port or PCIe link, or many of one rail, that became slow within a minute of the transfers; the one
machine that has all ranks with long transfers; or, where they are long in single steps, a port that goes down
again and again. Where machines are named for their long transfers, it is one of them.
"""

from collections.abc import Set

from alerts.cases.case import Case
from alerts.config import FindingConfig
from alerts.report.render import LONG_STEPS
from alerts.stated_severity import isolated


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


def _repeats(case: Case) -> bool:
    return not isolated(case.kind, (s.severity for s in case.suspicions()))


def _slow_again_and_again(job: Case, port: Case, window: float) -> bool:
    """Return whether transfers are slow in single steps, and the port went down as that began: which of the
    steps was the first is not well known, and the port may have gone down again since."""
    single = [s for s in job.suspicions() if any(e.metric.endswith(LONG_STEPS) for e in s.evidence)]
    down = (port.first_onset, port.since)
    return any(s.onset_lo - window <= at <= s.onset_hi + window for s in single for at in down)
