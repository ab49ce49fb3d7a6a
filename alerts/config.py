"""Settings of findings: when evidence opens one, and when it ends."""

from dataclasses import dataclass, field

from alerts.reasoning.calibration import FITTED, Calibration
from alerts.report.cost import ActionCosts


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingConfig:
    """Times in seconds of event time. The defaults are chosen, not estimated on faults of real clusters."""

    agree_within_seconds: float = 60.0
    """Two families corroborate each other when their onsets are no further apart."""
    resolve_after_seconds: float = 300.0
    """How long recovery must hold before a finding is resolved."""
    reopen_within_seconds: float = 24 * 3600.0
    """A relapse within this time of the end reopens the same finding."""
    suspected_expires_after_seconds: float = 600.0
    open_expires_after_seconds: float = 48 * 3600.0
    """A suspected or an open finding expires so long after the last report of any detector."""
    flap_count: int = 3
    flap_within_seconds: float = 3600.0
    """So many recoveries and relapses make a straggler an intermittent one."""
    node_group_size: int = 2
    node_group_share: float = 0.75
    """So many slow ranks of one node, and this share of all that their jobs have there, are one finding about
    the node (chosen: three of four); only where the jobs run on other nodes too."""
    node_hold_share: float = 0.5
    node_hold_seconds: float = 30.0
    """Where several ranks of a node are slow, each waits for the others before it is a finding of its own:
    this share of the time from its onset on, but no longer than so many seconds, or than onsets are vague."""
    hold_seconds: float = 1.0
    """Links and silence of nodes with known racks or switches are held so long for the other nodes, so that a
    dead switch is one finding from the start (chosen: the period of their reports)."""
    mass_fraction: float = 0.2
    mass_nodes: int = 3
    """More than this share of a cluster's nodes, and so many, that fall silent within seconds of each other
    are the telemetry path: one finding about that, and none about the nodes (chosen: independent failures
    of a fifth of the nodes at once do not occur)."""
    lateness_seconds: float = 120.0
    """Suspicions out of order by less than this change nothing in the outcome."""
    prior_log_odds: float = -3.0
    """Log-odds of a fault before any evidence (chosen: one in twenty); calibration corrects its error."""
    tables: str = ""
    """Fingerprint of the detectors' settings, so that ``config_hash`` differs between tunings."""
    gpu_hour_price: float | None = None
    """Money per GPU-hour; no price, no ``cost_per_hour``."""
    runbooks: str = field(default="", repr=False)
    """URL of the runbooks of stored findings, with ``{kind}``; without one they have no link. Not part of
    ``config_hash``, because no finding depends on it."""
    costs: ActionCosts = field(default_factory=ActionCosts)
    """Cost of acting, with which the loss is compared before a finding advises to drain a node."""
    calibration: Calibration = FITTED
