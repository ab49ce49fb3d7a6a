"""The settings of a finding's life: when evidence becomes a finding, and when a finding ends."""

from dataclasses import dataclass, field

from alerts.calibration import FITTED, Calibration
from alerts.cost import ActionCosts


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingConfig:
    """Times in seconds of event time; the defaults are starting values, not yet estimated on faults."""

    agree_within_seconds: float = 60.0
    """Two families corroborate each other when their onsets are no further apart."""
    resolve_after_seconds: float = 300.0
    """How long recovery must hold before a finding is resolved."""
    reopen_within_seconds: float = 24 * 3600.0
    """A relapse within this time of the end reopens the same finding."""
    suspected_expires_after_seconds: float = 600.0
    open_expires_after_seconds: float = 48 * 3600.0
    """Without a word from any detector, a suspected or an open finding expires."""
    flap_count: int = 3
    flap_within_seconds: float = 3600.0
    """So many recoveries and relapses make a straggler an intermittent one."""
    node_group_size: int = 3
    node_group_share: float = 0.75
    """So many slow ranks of one node, and this share of all that their jobs have there, are one finding about
    the node; only where the jobs run on other nodes too."""
    node_hold_share: float = 0.5
    node_hold_seconds: float = 30.0
    """Where several ranks of a node are slow, each waits for the others before it is a finding of its own:
    this share of the time from its onset on, but no longer than so many seconds."""
    hold_seconds: float = 1.0
    """What fails by rack or switch (links, silence) waits so long for the others, on nodes that say where
    they stand: so that a dead switch is one finding from the start."""
    mass_fraction: float = 0.2
    mass_nodes: int = 3
    """More than this share of a cluster's nodes, and so many, that fall silent within seconds of each other
    are the telemetry path: one finding about that, and none about the nodes."""
    lateness_seconds: float = 120.0
    """Suspicions out of order by less than this change nothing in the outcome."""
    prior_log_odds: float = -3.0
    """Log-odds of a fault before any evidence, given that somebody looks."""
    tables: str = ""
    """Fingerprint of what the detectors were told, so that ``config_hash`` tells tunings apart."""
    gpu_hour_price: float | None = None
    """Money per GPU-hour; no price, no ``cost_per_hour``."""
    costs: ActionCosts = field(default_factory=ActionCosts)
    """What acting takes; loss is weighed against it before anybody is told to drain a node."""
    calibration: Calibration = FITTED
