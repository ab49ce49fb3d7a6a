"""Detectors and rules by the names under which settings switch and tune them.

They are the ``catalogue_id`` and ``rule_id`` of suspicions.
"""

from dataclasses import dataclass

from streams.node.detectors.watched_metrics import WATCHED
from streams.node.rules.counter_rules import GPU_COUNTS, HOST_COUNTS, NIC_COUNTS
from streams.node.rules.event_tables import EVENT_RULES
from streams.node.rules.state_rules import GPU_STATES, NIC_STATES, NODE_STATES


@dataclass(frozen=True, slots=True)
class Detector:
    """One entry; ``knobs`` is the path of its settings in ``Configs``, ``only`` names its own among them."""

    name: str
    about: str
    knobs: tuple[str, ...] = ()
    only: tuple[str, ...] = ()


# Its one setting is a file, the model.
GRAY = Detector("gray", "nodes with several weak signs at once, where it has a model of healthy ones")

# In the order of display.
DETECTORS = (
    Detector("peer_step", "ranks slower than their peers, lastingly or on and off", ("job", "straggler")),
    Detector("data_loading", "ranks that wait for data longer than their peers"),
    Detector("stage", "pipeline stages with more work than the others"),
    Detector("workload", "work that differs between ranks from step to step"),
    Detector("shared_wait", "waits of all ranks that became longer: for data, or unexplained"),
    Detector(
        "congestion",
        "transfers that take longer for all ranks of a job, also in single steps again and again, or for a "
        "part that the others wait for",
    ),
    Detector("group_votes", "parallel groups that transfer more slowly than the others"),
    Detector("hang", "jobs without progress"),
    Detector("rank_missing", "ranks without steps while the others advance"),
    Detector("startup", "nodes that hold up the start of their job"),
    Detector("loss", "losses and gradient norms that are no numbers, leap or keep rising", ("job", "loss")),
    Detector("level_changes", "clocks, power, temperatures and rates that moved", ("node", "change")),
    Detector("silence", "nodes that stopped sending", ("node", "silence")),
    Detector("clock", "nodes whose clock is off"),
    Detector("gpu_presence", "GPUs that can no longer be read", ("node",), ("gone",)),
    GRAY,
    Detector("counters", "error counters that rise"),
    Detector("states", "throttle reasons, link widths and other states that hold"),
    Detector("node_clocks", "nodes whose GPUs have lower clocks than those of their job's other nodes"),
    Detector(
        "job_peers",
        "nodes and GPUs that became unlike the others of their job as it slowed down, without step rows",
    ),
    Detector("waiting_ports", "ports in which data waits longer than usual and than in the node's others"),
    Detector("tcp_loss", "nodes that lose TCP segments in both directions"),
    Detector("tcp_delay", "nodes whose TCP round trips became long in both directions"),
    Detector("pairwise", "links, from delays between pairs of nodes where a prober measures them"),
    Detector("domains", "racks, switches and rails that fail as a whole; a trial of it finds nothing"),
    Detector("events", "XIDs and other events of the kernel log and the driver"),
    Detector("alerts", "alerts of other systems, which corroborate what is suspected"),
)

# Not a detector and never off, but tuned in the same way.
FINDINGS = Detector("findings", "when suspicions become a finding and when it ends", ("finding",))

NAMES = frozenset(d.name for d in DETECTORS)

# Single rules, which have a mode of their own and no other setting.
RULES = frozenset(
    [
        *(f"counter.{rule.metric}" for rule in (*GPU_COUNTS, *NIC_COUNTS, *HOST_COUNTS)),
        *(f"state.{rule.name}" for rule in (*GPU_STATES, *NIC_STATES, *NODE_STATES)),
        *(f"event.{code}" for code, rule in EVENT_RULES.items() if rule is not None),
        *(f"change.{watched.metric}" for watched in WATCHED),
    ]
)
