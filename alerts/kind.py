"""The row of a finding kind: everything that alerts, incidents, texts and documentation need of it."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

from slowrank.telemetry.records import Family, Severity


class Standing(IntEnum):
    """Which of two kinds at one place leads the finding: the lower one; the other becomes its evidence."""

    FATAL = 0
    SYMPTOM = 1
    CAUSE = 2
    ASIDE = 3
    """About the telemetry, not the machine: neither corroborates nor explains anything else."""


# How far the actions for broken hardware reach, by what is lost meanwhile (chosen): the program looked at,
# the GPU tested, reset, its whole node rebooted, inspected, or hardware replaced.
_REACH = {
    action: reach
    for reach, action in enumerate(
        ("CHECK_APP", "RUN_DIAG", "RESET_GPU", "REBOOT_NODE", "HARDWARE_INSPECTION", "CONTACT_SUPPORT"), 1
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainRule:
    """How a kind is found on a rack, switch or rail: many of its members show the ``evidence`` together.

    ``evidence``: the kinds of the members' cases; their onsets lie within ``within_seconds``.
    ``inhibits``: beginnings of the kinds that need no finding of their own on the members.
    ``hypothesis`` explains it, with evidence of the ``family``. ``of_ports``: its members are network ports
    and not nodes. ``of_cluster``: it is judged by the share of the cluster's nodes, not by racks or switches.
    """

    evidence: tuple[str, ...]
    inhibits: tuple[str, ...]
    within_seconds: float
    hypothesis: str
    family: Family
    of_ports: bool = False
    of_cluster: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One row of ``alerts.kinds``.

    ``title`` may name ``{place}``, ``{group}`` (the place, else some ranks of the job), ``{ratio}``,
    ``{peers}``, ``{missing}`` (what a stopped job lacks), ``{again}`` (how often it has stopped, or is slow),
    ``{model}`` and ``{nodes}`` (of slow ranks), ``{some}`` (of how many ranks of a node it is true);
    ``text``, the advice, ``{place}``. ``meaning`` is the Markdown of its row in ``docs/findings.md``;
    ``phrase`` names it as a cause in a few words.

    Most rows are of a CAUSE and a warning: these are the defaults.

    ``reported_as``: a ``finding`` may be reported; a ``cause`` is only a hypothesis of other findings;
    ``evidence`` is weighed and never reported; a ``family`` stands for its members that have no row.

    ``pages``: a finding becomes graver when a job is measurably ``hurt``, up to ``critical``; or then only
    if it names a ``machine``; or only once it has ``repeated``, so that a detector calls it an error; or
    ``never``: then it is a warning at most. What may not page is ``info`` while no job is hurt.
    """

    action: str
    text: str
    standing: Standing = Standing.CAUSE
    severity: Severity = "warning"
    title: str | None = None
    meaning: str = ""
    phrase: str | None = None
    reported_as: Literal["finding", "cause", "evidence", "family"] = "finding"
    pages: Literal["hurt", "machine", "repeated", "never"] = "hurt"

    opens_alone: bool = False
    """One detector is enough, because the finding claims no more than what was measured."""
    silence_counts: bool = False
    """Missing telemetry is evidence for it; for other kinds, about parts of a node, it is none."""
    not_beside: tuple[str, ...] = ()
    """It opens no finding while one of these kinds is active in its scope, and for two minutes after that:
    they may be all there is to it."""
    found_anew: bool = False
    """What shows it is measured against fixed limits all the time: a detector that has forgotten it reports
    it again within five minutes, if it lasts."""
    steps_confirm: bool = False
    """What hardware shows of this kind counts only once slow steps confirm it."""
    excused_by_plan: bool = False
    """It compares a job with its past: expected, where the job has announced a change of its work."""
    warms_up: bool = False
    """It compares ranks with each other: for a while they may differ by what is new, where the job has
    announced other work (``job.schedule``)."""
    without_past: bool = False
    """As a hypothesis it needs no healthy past, so that no announced change excuses it."""
    uneven: bool = False
    """As a hypothesis of a slow machine: its work may be more, and the rows do not tell."""

    explained_by: tuple[str, ...] = ()
    """Kinds that cause this one: beside one of them it is not listed as an explanation."""
    permanent: bool = False
    """It lasts until somebody repairs or resets something."""
    cure: str | None = None
    """A command that ends it on a node while the job goes on, with ``{gpu}`` for the option that names the
    GPU: it comes first, and a restart is advised only for what is left."""
    heals_like: Literal["compute", "congestion"] = "compute"
    """The law of its durations (``alerts.report.duration``)."""
    own_action: bool = False
    """Its action stands whatever the cause, beside slow loading, and is not weighed against the cost of a
    restart."""

    hang: bool = False
    """The job makes no progress: all its GPUs are lost, and both signals of the hang rule are needed."""
    of_job: bool = False
    """Belongs to the job, whichever node reports it."""
    no_culprit: bool = False
    """A slow job in which no machine stands out: its likeliest cause names it."""
    all_slow: bool = False
    """As a cause of a slow job: all that are slow are suspects, and none is the one culprit among them."""
    transfers: Literal["slow", "slowing"] | None = None
    """As a hypothesis: the job's transfers are ``slow``. As a fault: it is ``slowing`` those that pass it."""
    confirmed_by_transfers: bool = False
    """Transfers of its job that became slow with it confirm it, where nothing else slows them."""
    may_stop_job: bool = False
    """Most jobs survive it: it explains a hang only if the hang began right after it."""
    stops_job_by: tuple[str, ...] = ()
    """Where it may stop a job: what of its evidence does, not enough for a finding without the stop."""
    of_one_node: bool = False
    """On several nodes of a job at once it comes from what they share, as storage or the program, and none of
    them stopped the job."""

    gathered_into: tuple[Literal["node", "group"], ...] = ()
    """Cases of ranks that began together become one about their node or tensor-parallel group."""
    each_by_itself: bool = False
    """A rank that shows it slows no other of its machine: those that show it at once need not be alike."""
    held_for_domain: bool = False
    """All nodes of a rack or switch show it within a second: it waits so long for the others."""
    trace: bool = False
    """A counter that an earlier fault has left behind: part of that fault's finding."""
    relapsing_as: str | None = None
    """The kind that it is reported as after several relapses."""
    with_hang: str | None = None
    """The kind that it is reported as once a job has stopped with it."""
    until_hang: str | None = None
    """The kind that it is reported as, for a rack or switch, until a job has stopped with it."""
    domain: DomainRule | None = None
    """How it is found on a rack, switch, rail or cluster as one incident."""
    counts_findings: bool = False
    """It is derived from a machine's earlier findings and is none of them."""

    @property
    def reach(self) -> int:
        """How far its action reaches, compared with those of other broken hardware."""
        return _REACH.get(self.action, 0)
