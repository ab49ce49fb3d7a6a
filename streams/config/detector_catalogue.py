"""The detectors by the names people switch and tune them by, and which of them a suspicion comes from."""

from dataclasses import dataclass

from slowrank.telemetry import Suspicion
from streams.node.detectors.watched_metrics import WATCHED
from streams.node.rules.event_tables import EVENT_RULES
from streams.node.rules.rule_tables import GPU_COUNTS, HOST_COUNTS, NIC_COUNTS
from streams.node.rules.state_rules import GPU_STATES, NIC_STATES, NODE_STATES


@dataclass(frozen=True, slots=True)
class Detector:
    """One entry; ``knobs`` is where its settings stand in ``tuning.Configs``, ``only`` which of them are
    its own where others' stand there too."""

    name: str
    about: str
    knobs: tuple[str, ...] = ()
    only: tuple[str, ...] = ()


GRAY = Detector("gray", "nodes with several weak signs at once, where it has a model of healthy ones")
"""Its one setting is no number but a file: the model."""

DETECTORS = (
    Detector("peer_step", "ranks slower than their peers, lastingly or on and off", ("job", "straggler")),
    Detector("data_loading", "ranks that wait for data longer than their peers"),
    Detector("stage", "pipeline stages with more work than the others"),
    Detector("workload", "work that differs between ranks from step to step"),
    Detector("shared_wait", "waits of all ranks that became longer: for data, or for what nobody measures"),
    Detector("congestion", "transfers that take longer for all ranks of a job"),
    Detector("group_votes", "parallel groups that transfer more slowly than the others"),
    Detector("hang", "jobs without progress"),
    Detector("rank_missing", "ranks without steps while the others advance"),
    Detector("startup", "nodes that hold up the start of their job"),
    Detector("loss", "losses and gradient norms that are no numbers, leap or keep rising", ("job", "loss")),
    Detector("level_changes", "clocks, power, temperatures and rates that moved", ("node", "change")),
    Detector("silence", "nodes that stopped sending", ("node", "silence")),
    Detector("clock", "nodes whose clock is off"),
    Detector("gpu_presence", "GPUs that are not read any more", ("node",), ("gone",)),
    GRAY,
    Detector("counters", "error counters that rise"),
    Detector("states", "throttle reasons, link widths and other states that hold"),
    Detector("waiting_ports", "ports in which data waits longer than usual and than in the node's others"),
    Detector("pairwise", "links, from delays between pairs of nodes where somebody probes them"),
    Detector("domains", "racks, switches and rails that fail as a whole; a trial of it finds nothing"),
    Detector("events", "XIDs and other events of the kernel log and the driver"),
)
"""In the order in which they are shown."""

FINDINGS = Detector("findings", "when suspicions become a finding and when it ends", ("finding",))
"""Not a detector, and never off, but tuned alike."""

NAMES = frozenset(d.name for d in DETECTORS)

RULES = frozenset(
    [
        *(f"counter.{rule.metric}" for rule in (*GPU_COUNTS, *NIC_COUNTS, *HOST_COUNTS)),
        *(f"state.{rule.name}" for rule in (*GPU_STATES, *NIC_STATES, *NODE_STATES)),
        *(f"event.{code}" for code, rule in EVENT_RULES.items() if rule is not None),
        *(f"change.{watched.metric}" for watched in WATCHED),
    ]
)
"""Single rules, which have a mode of their own and no other setting."""

# Kinds come before detectors: a hang is told by steps, by quiet nodes and by what the job declares, switched
# as one.
_OF_KIND = {
    "hang.job": "hang",
    "hang.rank_missing": "rank_missing",
    "data.loader_slow": "data_loading",
    "job.planned": "events",
}
_OF_CAUSE = {
    "imbalance.stage": "stage",
    "imbalance.workload": "workload",
    "data": "shared_wait",
    "unmeasured": "shared_wait",
    "congestion": "congestion",
}
_OF_PREFIX = {
    "counter": "counters",
    "state": "states",
    "event": "events",
    "change": "level_changes",
    "presence": "gpu_presence",
    "exporter": "silence",
    "places": "domains",
    "port": "waiting_ports",
}


def detector_of(s: Suspicion) -> str:
    """Return the name of the detector that a suspicion comes from."""
    if s.kind in _OF_KIND:
        return _OF_KIND[s.kind]
    if s.kind == "straggler.job_wide" and s.detector == "peer_step":
        return next((name for about, name in _OF_CAUSE.items() if about in s.hypotheses), "workload")
    prefix = s.detector.partition(".")[0]
    return _OF_PREFIX.get(prefix, prefix)


def rule_of(s: Suspicion) -> str:
    """Return the name of the single rule that a suspicion comes from, empty where its detector has none.

    A detector's own name is no rule: one that finds several things has a name for each of them.
    """
    if s.detector.startswith("event.") and s.evidence:
        return f"event.{s.evidence[0].metric}"
    return s.detector if s.detector in RULES else ""
