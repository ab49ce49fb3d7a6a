"""Every finding kind, one row each: the only place that lists them.

A new kind is a row here, a section of its name in ``docs/runbooks.md``, and a detector that raises suspicions
of it. ``docs/findings.md`` is written from the rows by ``scripts/kinds_table.py``.
"""

from dataclasses import replace
from difflib import get_close_matches
from functools import lru_cache

from alerts.kind import DomainRule, Kind, Standing
from alerts.xid_kinds import XID_KINDS
from slowrank.telemetry.hardware.xids import xid, xid_of

FATAL, SYMPTOM, _, ASIDE = Standing

_THROTTLED = ("throttle.thermal", "throttle.power")
_LOWER_LIMIT = "throttle.power_limit"
# All GPUs of a node are of one model.
_DEFAULT_LIMIT = "nvidia-smi --query-gpu=power.default_limit --format=csv,noheader,nounits | head -n 1"

# The common switch or uplink of many ports: also the likeliest cause of a silent switch.
FABRIC = "fabric.rail_degraded"
# The votes of nodes on a hang, as a case of its own: the nodes of the job do not work.
IDLE = "hang.idle"
# A job announces a change of its work.
PLANNED = "job.planned"
# The detector of such a change where it is the work of each step that is another: batch, lengths, phase.
RESCHEDULED = "job.schedule"

# A node missed reports: evidence of an incident before it is ``exporter.stale``, and never a finding.
UNHEARD_KIND = "self.unheard"

# Links and silence: one failing switch or feed takes all members within ±1 s, their reporting period.
TOGETHER_SECONDS = 2.0
# Heat and power reach the nodes of a rack within ±60 s (chosen: cooling reacts within minutes).
SPREADING_SECONDS = 120.0
# When the telemetry path breaks, the last records of its nodes lie within so many seconds (chosen: wider than
# for one switch, as records in flight are lost at different times).
OUTAGE_SECONDS = 10.0

_SILENCE = (UNHEARD_KIND, "exporter.stale", "node.silent")
_SLOWED = ("throttle.", "clock.low", "straggler.")

KINDS: dict[str, Kind] = {
    "straggler.fail_slow": Kind(
        standing=SYMPTOM,
        title="{place} is {ratio} slower than {peers}",
        meaning="a rank, GPU, node or parallel group is slower than its peers, lastingly",
        action="RUN_DIAG",
        text="Run diagnostics on {place} at the next pause.",
        phrase="the machine itself; no telemetry of its hardware shows why",
        pages="machine",
        explained_by=("data.loader_slow",),
        steps_confirm=True,
        warms_up=True,
        gathered_into=("node", "group"),
        relapsing_as="straggler.intermittent",
    ),
    "straggler.of_group": Kind(
        # Its group has the finding. What hardware shows of the rank is confirmed by it and leads it.
        severity="info",
        action="WATCH",
        text="Watch {place}: it is slow as one with its group.",
        reported_as="evidence",
    ),
    "straggler.intermittent": Kind(
        standing=SYMPTOM,
        title="{place} slows down again and again ({ratio})",
        meaning="slow on and off, or stalls for single steps that cost its job 5 % and more",
        phrase="slow on and off",
        action="WATCH",
        text="Watch {place}; it comes and goes.",
        pages="machine",
        own_action=True,
        warms_up=True,
        gathered_into=("node", "group"),
    ),
    "straggler.job_wide": Kind(
        standing=SYMPTOM,
        title="{place} is {ratio} slower than it was; no machine stands out",
        meaning=(
            "the job is slow and no machine stands out; the hypothesis gives the cause: `imbalance.stage`, "
            "`imbalance.context` (a context-parallel position has more work from the start), "
            "`imbalance.model` (the ranks on one GPU model), `imbalance.machine` (all ranks of some nodes, "
            "which the finding names; beside `imbalance.stage` where no coordinates are known and they stand "
            "as a stage does), `imbalance.slowed_machine` (those of half of the nodes or more became slow at "
            "one moment), `imbalance.position` (all ranks at one place of the layers became slow), "
            "`imbalance.workload`, `congestion` (the transfers of all ranks have become slow, or are so "
            "again and again, in single steps that cost the job 5 % and more), `group` (the transfers of one "
            "parallel group, or of a stage or another part of the ranks, have become slow, and the others "
            "wait; where rows have no `comm_seconds`, beside `unmeasured.part`: what these ranks do outside "
            "of compute, waits and what else they report takes longer), `data` (most ranks wait longer for "
            "data, or half of those on six machines and more: `CHECK_DATA`), "
            "`unmeasured` (all wait longer, or in such steps, and no column shows for what), "
            "`between_steps` (from the end of a step to the start of the next it takes longer: loading of "
            "data, checkpoints or logging outside the timed step), `saving` (all ranks that save take longer "
            "for it, three times in a row, which costs the job 5 % and more: `CHECK_DATA`); "
            "[several at once](#several-causes-of-a-slow-job) are "
            "findings of their own"
        ),
        phrase="all of the job is slower",
        severity="info",
        action="CHECK_APP",
        text="No machine stands out: look at the code, the data and the schedule.",
        pages="never",
        no_culprit=True,
        excused_by_plan=True,
    ),
    "hang.job": Kind(
        standing=FATAL,
        title="{place} has stopped{again}: {missing}",
        meaning=(
            "no steps, and machines that do not work; information from about 12 s after the last step, "
            "critical from 60 s, in a job seen for less than half an hour and with few pauses from 120 "
            "s, before its twentieth step from 10 min; where no node sends samples of GPUs and ports, "
            "[from step rows alone](#from-step-rows-alone); where no steps are sent, "
            "[from nodes alone](#from-nodes-alone)"
        ),
        phrase="the job has stopped",
        severity="critical",
        action="RUN_DIAG",
        text="Dump the stacks of its ranks, those of suspects first, before the job is restarted.",
        hang=True,
        of_job=True,
    ),
    IDLE: Kind(
        standing=ASIDE,
        severity="info",
        action="NONE",
        text="Idle machines alone are no fault.",
        reported_as="evidence",
    ),
    PLANNED: Kind(
        standing=ASIDE,
        severity="info",
        action="NONE",
        text="The job has announced a change of its work.",
        reported_as="evidence",
        of_job=True,
    ),
    "hang.rank_missing": Kind(
        standing=SYMPTOM,
        title="{place} reports no steps{some} while others go on",
        meaning=(
            "no steps of one rank for 60 s and 8 steps while the others go on, or for 10 s and some 20 steps "
            "where its node sends those of other ranks; a warning where no rank of the node reports, for "
            "its telemetry may be lost"
        ),
        phrase="no steps of a rank",
        severity="error",
        action="RUN_DIAG",
        text="Dump the stack of {place}; it stopped reporting steps.",
        gathered_into=("node",),
        not_beside=("exporter.stale", "node.silent"),
    ),
    "gray.node": Kind(
        title="{place} has become unlike its peers",
        meaning=(
            "in a job without step rows that became slower: the one node or GPU that departed from the "
            "others for four minutes ([from nodes alone](#from-nodes-alone)); or several weak signs at once, "
            "where there is a [model](operations.md#nodes-with-several-weak-signs) of healthy nodes, which "
            "only corroborate"
        ),
        phrase="unlike its peers",
        action="RUN_DIAG",
        text="Run diagnostics on {place}: it has become unlike its peers.",
    ),
    "node.silent": Kind(
        standing=FATAL,
        title="{place} is silent",
        meaning="a node sends no telemetry for 30 s, and other evidence confirms that it is gone",
        phrase="the node is silent",
        severity="error",
        action="REBOOT_NODE",
        text="Check {place} over its BMC; reboot it.",
        silence_counts=True,
        held_for_domain=True,
        until_hang="exporter.stale",
        domain=DomainRule(
            evidence=_SILENCE,
            inhibits=("",),
            within_seconds=TOGETHER_SECONDS,
            hypothesis="domain",
            family="silence",
        ),
        found_anew=True,
    ),
    "node.lemon": Kind(
        title="{place} fails again and again",
        meaning="fails again and again",
        phrase="fails again and again",
        action="HARDWARE_INSPECTION",
        text="Inspect {place}: it fails again and again.",
        counts_findings=True,
    ),
    "exporter.stale": Kind(
        standing=ASIDE,
        title="No telemetry from {place}",
        meaning=(
            "no telemetry of a node for 10 s, or of a rack, a switch or, for 30 s, all of a cluster "
            "(`site`) at once (an error, `CHECK_NETWORK`); the nodes may be well"
        ),
        phrase="no telemetry",
        action="WATCH",
        text="See whether {place} is up (BMC): if so restart what collects its telemetry, else reboot it.",
        opens_alone=True,
        held_for_domain=True,
        may_stop_job=True,
        with_hang="node.silent",
        found_anew=True,
    ),
    "gpu.unreadable": Kind(
        standing=ASIDE,
        title="No GPU of {place} can be read",
        meaning="telemetry of a node goes on without any GPU of it: the driver or NVML does not answer",
        phrase="no GPU can be read",
        action="RUN_DIAG",
        text="Run nvidia-smi on {place} and read its kernel log: is the driver loaded, do its GPUs answer?",
        opens_alone=True,
        may_stop_job=True,
        found_anew=True,
    ),
    "gpu.missing": Kind(
        standing=FATAL,
        title="{place} is no longer reported",
        meaning=(
            "one GPU of a node is sent no more while its others are: it has left the bus, or what collects "
            "the metrics hides it"
        ),
        phrase="GPU no longer reported",
        severity="error",
        action="RUN_DIAG",
        text="Run nvidia-smi -L on the node and read its kernel log: is {place} still there?",
        explained_by=("xid.79",),
        found_anew=True,
    ),
    "exporter.spool": Kind(
        standing=ASIDE,
        title="The exporter on {place} has no room for its spool",
        meaning=("a node's spool has room for less than 1 MiB of records, some 12 minutes of them, for 10 s"),
        phrase="no room for the spool",
        action="WATCH",
        text="Make room on the disk of the spool of {place}, or move it (`SLOWRANK_EXPORTER_SPOOL_DIR`).",
        opens_alone=True,
        found_anew=True,
    ),
    "throttle.power": Kind(
        title="{place} is throttled by power",
        meaning="clocks held down by power",
        action="HARDWARE_INSPECTION",
        text="Check the power supplies and the power policy of {place}.",
        phrase="power cap",
        domain=DomainRule(
            evidence=("throttle.power",),
            inhibits=_SLOWED,
            within_seconds=SPREADING_SECONDS,
            hypothesis="throttle.power",
            family="clocks",
        ),
        explained_by=(_LOWER_LIMIT,),
        found_anew=True,
    ),
    _LOWER_LIMIT: Kind(
        title="{place} has a lower power limit than its peers",
        meaning="a power limit below that of its peers, which lowers the clocks",
        action="RUN_DIAG",
        text=(
            "Set the power limit of {place} back to its default, unless it is lower on purpose: the job goes "
            "on. Drain it only if the limit falls again."
        ),
        cure=f'nvidia-smi{{gpu}} --power-limit="$({_DEFAULT_LIMIT})"',
        phrase="power limit below its peers'",
        permanent=True,
        found_anew=True,
    ),
    "throttle.thermal": Kind(
        title="{place} is throttled by heat",
        meaning="clocks held down by heat",
        action="HARDWARE_INSPECTION",
        text="Check the cooling of {place}: fans, air flow, heat sink.",
        phrase="thermal throttling",
        domain=DomainRule(
            evidence=("throttle.thermal",),
            inhibits=_SLOWED,
            within_seconds=SPREADING_SECONDS,
            hypothesis="throttle.thermal",
            family="clocks",
        ),
        found_anew=True,
    ),
    "throttle": Kind(
        action="HARDWARE_INSPECTION",
        text="Find out why the clocks of {place} are held down.",
        reported_as="family",
    ),
    "throttle.hw_slowdown": Kind(
        title="{place} is slowed down by its hardware",
        meaning="clocks held down by the hardware, which gives no reason",
        action="HARDWARE_INSPECTION",
        text="Find out why the clocks of {place} are held down.",
        phrase="hardware slowdown",
        explained_by=_THROTTLED,
        found_anew=True,
    ),
    "clock.low": Kind(
        title="{place} runs at a low clock for no stated reason",
        meaning="a low clock without a reason, such as a lock left over",
        action="RUN_DIAG",
        text=(
            "Release a left-over clock lock of {place}: the job goes on. Drain and reset it only if the "
            "clock stays low or falls again."
        ),
        cure="nvidia-smi{gpu} --reset-gpu-clocks",
        phrase="SM clock below its peers, no reason given",
        explained_by=(*_THROTTLED, _LOWER_LIMIT, "throttle.hw_slowdown"),
        permanent=True,
    ),
    "gpu.slow_reads": Kind(
        title="{place} answers its driver slowly",
        meaning=(
            "a GPU, or most GPUs of a node, that take more than 0.25 s to answer NVML; a sick GPU or "
            "driver often shows so first"
        ),
        phrase="slow answers of the GPU's driver",
        action="RUN_DIAG",
        text="Run diagnostics on {place} at the next pause: reads through its driver take long.",
        opens_alone=True,
        explained_by=("xid.62", "xid.79", "xid.119", "xid.120", "xid.154"),
    ),
    "ecc.correctable_rate": Kind(
        title="{place} corrects memory errors at a high rate",
        meaning="many corrected memory errors",
        phrase="many corrected memory errors",
        action="WATCH",
        text="Schedule diagnostics: {place} corrects many errors.",
        opens_alone=True,
    ),
    "ecc.uncorrectable": Kind(
        standing=FATAL,
        title="{place} has uncorrectable memory errors",
        meaning="uncorrectable memory errors",
        phrase="uncorrectable memory errors",
        severity="error",
        action="RESET_GPU",
        text="Reset {place} before the next job.",
    ),
    "ecc.row_remap_pending": Kind(
        title="{place} waits for a reset to remap memory rows",
        meaning="a memory row waits for a reset",
        phrase="memory row waits for a reset",
        severity="error",
        action="RESET_GPU",
        text="Reset {place} to finish the row remap.",
        explained_by=("ecc.uncorrectable",),
        trace=True,
    ),
    "ecc.row_remap_failure": Kind(
        standing=FATAL,
        title="{place} can remap no more memory rows",
        meaning="no memory rows left to remap",
        phrase="no memory rows left to remap",
        severity="error",
        action="CONTACT_SUPPORT",
        text="Replace {place}: rows ran out.",
        permanent=True,
    ),
    "xid.79": Kind(
        standing=FATAL,
        title="{place} has fallen off the bus",
        meaning="the GPU fell off the bus",
        phrase="XID 79, GPU fell off the bus",
        severity="critical",
        action="REBOOT_NODE",
        text="Drain and reboot the node: {place} fell off the bus.",
        permanent=True,
    ),
    "xid": Kind(
        standing=FATAL,
        meaning=(
            "another XID of NVIDIA's driver; one in its catalogue has [its own severity and "
            "action](hardware-rules.md), XID 154 the action that the driver asks for; `xid` is for all "
            "others of one GPU together, a warning that names the latest"
        ),
        severity="error",
        action="RUN_DIAG",
        text="Look the XID up, then run diagnostics on {place}.",
    ),
    "link.nvlink_degraded": Kind(
        title="{place} has a degraded NVLink",
        meaning="NVLink errors; a counter that rises is a warning",
        phrase="NVLink errors",
        severity="error",
        action="RESET_GPU",
        text="Reset {place}; inspect the hardware if it returns.",
    ),
    "link.nvswitch": Kind(
        title="{place} has NVSwitch errors",
        meaning="errors of the node's NVSwitches (SXid)",
        phrase="NVSwitch errors",
        severity="error",
        action="RESET_GPU",
        text="Stop the jobs on {place}, then reset all its GPUs and NVSwitches together (nvidia-smi -r).",
    ),
    "link.pcie_fatal": Kind(
        standing=FATAL,
        title="{place} has lost its PCIe link",
        meaning="a PCIe link was lost (AER, uncorrected and fatal)",
        phrase="lost PCIe link",
        severity="error",
        action="REBOOT_NODE",
        text="Drain and reboot the node; reseat {place} if it happens again.",
    ),
    "link.pcie_uncorrected": Kind(
        title="{place} has PCIe errors",
        meaning="a PCIe transfer was lost and the link goes on (AER, uncorrected)",
        phrase="PCIe errors",
        action="RUN_DIAG",
        text="Run PCIe diagnostics on {place}: a transfer was lost.",
    ),
    "link.nic_errors": Kind(
        title="{place} has link errors",
        meaning="a port with errors",
        phrase="errors of a network port",
        action="REPLACE_CABLE",
        text="Replace the cable of {place}; look at the remote end too.",
        explained_by=(FABRIC, "link.nic_flap"),
        held_for_domain=True,
        heals_like="congestion",
        transfers="slowing",
        found_anew=True,
    ),
    "link.nic_flap": Kind(
        title="{place} has lost its link",
        meaning="a port that went down",
        phrase="network link goes down",
        severity="error",
        action="REPLACE_CABLE",
        text="Replace the cable or optic of {place}.",
        pages="repeated",
        explained_by=(FABRIC,),
        held_for_domain=True,
        heals_like="congestion",
        transfers="slowing",
        may_stop_job=True,
    ),
    "link.nic_slow": Kind(
        title="{place} is slower than its rail",
        meaning="a port slower than its rail",
        phrase="slow network port",
        action="CHECK_NETWORK",
        text="Compare the speed of {place} with its rail.",
        explained_by=(FABRIC, "link.nic_errors", "link.nic_flap", "link.pcie_downgrade"),
        held_for_domain=True,
        heals_like="congestion",
        transfers="slowing",
        confirmed_by_transfers=True,
    ),
    "link.tcp_loss": Kind(
        title="{place} loses TCP segments in both directions",
        meaning="TCP segments to and from a node are lost",
        phrase="lost TCP segments",
        action="CHECK_NETWORK",
        text="Check cable, switch port and network driver of {place}: TCP segments to and from it are lost.",
        explained_by=(FABRIC, "link.nic_errors", "link.nic_flap"),
        heals_like="congestion",
        transfers="slowing",
    ),
    "link.tcp_delay": Kind(
        title="{place} has long TCP round trips in both directions",
        meaning="TCP round trips to and from a node became long",
        phrase="long TCP round trips",
        action="CHECK_NETWORK",
        text="Check speed, queues and routes of the links of {place}: TCP to and from it became slow.",
        explained_by=(FABRIC, "link.nic_errors", "link.nic_flap", "link.nic_slow", "link.tcp_loss"),
        heals_like="congestion",
        transfers="slowing",
    ),
    "link.pcie_downgrade": Kind(
        title="{place} runs on a narrowed PCIe link",
        meaning="fewer PCIe lanes or an older generation than there should be",
        phrase="narrowed PCIe link",
        severity="error",
        action="REBOOT_NODE",
        text="Reboot the node; reseat {place} if the link stays narrow.",
        permanent=True,
        transfers="slowing",
    ),
    "link.pcie_replay": Kind(
        title="{place} repeats PCIe transfers",
        meaning="PCIe transfers are repeated",
        phrase="repeated PCIe transfers",
        action="RUN_DIAG",
        text="Run PCIe diagnostics on {place}.",
    ),
    "link": Kind(
        action="RUN_DIAG",
        text="Run link diagnostics on {place}.",
        reported_as="family",
    ),
    FABRIC: Kind(
        title="{place} is degraded",
        meaning="many ports of one rail or switch",
        phrase="degraded rail or switch",
        severity="error",
        action="CHECK_NETWORK",
        text="Check the switch and the uplinks of {place}.",
        heals_like="congestion",
        transfers="slowing",
        may_stop_job=True,
        domain=DomainRule(
            evidence=("link.nic_flap", "link.nic_errors", "link.nic_slow"),
            inhibits=("link.nic_", "hang.rank_missing"),
            within_seconds=TOGETHER_SECONDS,
            hypothesis=FABRIC,
            family="nic",
            of_ports=True,
        ),
    ),
    "congestion": Kind(
        title="{place} transfers {ratio} slower than before{again}; no machine stands out",
        severity="info",
        action="CHECK_NETWORK",
        text="Look at the switches and links between the nodes of the job: all of its ranks transfer slower.",
        reported_as="evidence",
        of_job=True,
        heals_like="congestion",
        transfers="slow",
    ),
    "group": Kind(
        title="{group} transfers {ratio} slower than the others",
        severity="info",
        action="CHECK_NETWORK",
        text="Look at the links of the ranks of {place}: one of them is slow.",
        reported_as="cause",
        transfers="slow",
    ),
    "unmeasured.part": Kind(
        title="{group} takes {ratio} as long outside of compute and waits",
        phrase="what ranks do outside of what they report",
        severity="info",
        action="CHECK_APP",
        text=(
            "Look at what the ranks of {place} do outside of compute and waits, as transfers, saving or "
            "logging: the others wait for them."
        ),
        reported_as="cause",
        all_slow=True,
    ),
    "imbalance.stage": Kind(
        title="{group} carries {ratio} the compute of the others",
        phrase="pipeline stage with more work",
        action="CHECK_APP",
        text="Give the slowest stage fewer layers, or the others more: no machine is at fault.",
        reported_as="cause",
        without_past=True,
    ),
    "imbalance.context": Kind(
        title="{group} carries {ratio} the compute of the others",
        phrase="context-parallel position with more work",
        action="CHECK_APP",
        text=(
            "Give each context-parallel position as much work, as by parts from both ends of a sequence "
            "(zig-zag) under a causal mask: no machine is at fault."
        ),
        reported_as="cause",
        without_past=True,
    ),
    "imbalance.expert": Kind(
        action="CHECK_APP",
        text="Spread the tokens more evenly over the experts of {place}: no machine is at fault.",
        reported_as="cause",
    ),
    "imbalance.model": Kind(
        title="Ranks of {place} on {model} take {ratio} as long to compute as the others",
        phrase="slower GPU model",
        action="CHECK_APP",
        text="Give the ranks on the slower GPU model ({place}) less work, or run the job on one model.",
        reported_as="cause",
    ),
    "imbalance.unknown": Kind(
        action="CHECK_APP",
        text="Look at what {place} share, their part of the work or their place on the nodes.",
        reported_as="cause",
    ),
    "imbalance.machine": Kind(
        title="Ranks of {place} on {nodes} take {ratio} as long to compute as the others",
        phrase="slow machines",
        action="RUN_DIAG",
        text=(
            "Run diagnostics on {place}, or leave them out: all their ranks take longer for the same work, "
            "for a fault of each, a power limit or another model of GPU."
        ),
        reported_as="cause",
        without_past=True,
        all_slow=True,
    ),
    "imbalance.slowed_machine": Kind(
        title="Ranks of {place} on {nodes} have come to take {ratio} as long to compute as the others",
        phrase="machines that became slow at once",
        action="RUN_DIAG",
        text=(
            "Run diagnostics on {place}: all their ranks became slower at one moment, for a fault of each, a "
            "power limit or heat."
        ),
        reported_as="cause",
        all_slow=True,
    ),
    "imbalance.position": Kind(
        title="{group} has come to carry {ratio} the compute of the others",
        phrase="position of the layers with more work",
        action="CHECK_APP",
        text="Compare code and configuration with the last fast run: all ranks of {place} slowed alike.",
        reported_as="cause",
    ),
    "imbalance.workload": Kind(
        title="{place} is {ratio} slower than with evenly spread work",
        action="CHECK_APP",
        text=(
            "Spread the work more evenly, as by packing sequences by what they cost: no machine is at fault."
        ),
        phrase="uneven work",
        reported_as="cause",
        without_past=True,
        uneven=True,
    ),
    "domain": Kind(
        severity="error",
        action="CHECK_NETWORK",
        text="Check the power and the uplinks of {place}: its nodes fell together.",
        reported_as="cause",
    ),
    "host.cpu_contention": Kind(
        title="{place} shares its CPUs with something else",
        meaning="something else runs on the host's CPUs",
        action="CHECK_APP",
        text="Find what else runs on {place} and move it.",
        phrase="other load on the host's CPUs",
    ),
    "host.memory_pressure": Kind(
        title="{place} is short of memory",
        meaning="the host is short of memory",
        phrase="host short of memory",
        action="CHECK_APP",
        text="Find what fills the memory of {place}.",
        found_anew=True,
        may_stop_job=True,
        stops_job_by=("host.oom_kill", "host.oom_kills_total"),
        of_one_node=True,
    ),
    "host.hung_task": Kind(
        title="{place} has processes that hang in the kernel",
        meaning=(
            "processes that the kernel could not wake up for two minutes; of a driver or a network file "
            "system an error, else a warning"
        ),
        phrase="processes hang in the kernel",
        severity="error",
        action="RUN_DIAG",
        text=(
            "Find out what the processes of {place} wait for (a driver, a file system); reboot it if they "
            "stay."
        ),
        may_stop_job=True,
        of_one_node=True,
    ),
    "host.clock_skew": Kind(
        standing=ASIDE,
        title="The clock of {place} is off",
        meaning=(
            "the clock of a node is off: by half a second in its own measure, or by a minute in [when its "
            "records come](records.md#clocks-that-are-off)"
        ),
        phrase="clock of the node is off",
        action="WATCH",
        text="Repair the time service of {place}.",
        opens_alone=True,
        found_anew=True,
    ),
    "host": Kind(
        action="CHECK_APP",
        text="Look at the host side of {place}.",
        reported_as="family",
    ),
    "data": Kind(
        title="{place} waits for data and is {ratio} slower than it was",
        action="CHECK_DATA",
        text="Its ranks wait for data: look at the storage and how it is read.",
        reported_as="cause",
    ),
    "saving": Kind(
        action="CHECK_DATA",
        text="Look at the storage that checkpoints are written to: all ranks save more slowly than before.",
        reported_as="cause",
    ),
    "data.shared": Kind(
        action="CHECK_DATA",
        text="Several machines wait for data since one moment: look at what they share, the storage and the "
        "network to it.",
        reported_as="cause",
        all_slow=True,
    ),
    "data.loader_slow": Kind(
        standing=SYMPTOM,
        title="{place} waits for data",
        meaning="ranks wait for data",
        phrase="slow data loading",
        action="CHECK_DATA",
        text="Look at the data loader of {place}.",
        gathered_into=("node",),
        each_by_itself=True,
    ),
    "training.loss_anomaly": Kind(
        standing=ASIDE,
        title="{place} has an abnormal loss or gradient",
        meaning="a loss or gradient norm that is no number, leaps or keeps rising",
        phrase="abnormal loss or gradient",
        action="CHECK_APP",
        text="Roll back and replay; the loss does not show which machine is at fault.",
        excused_by_plan=True,
    ),
    "startup.slow": Kind(
        standing=ASIDE,
        title="{place} starts slowly",
        meaning="a node held up the start of its job",
        phrase="slow start",
        action="WATCH",
        text="Look at the start of {place}.",
    ),
    "self.job_memory": Kind(
        standing=ASIDE,
        title="slowrank runs out of memory for jobs: {place}",
        meaning=(
            "the jobs of a partition need more [memory](operations.md#memory-of-jobs) than they may have"
        ),
        action="NONE",
        text=(
            "Raise SLOWRANK_STREAMS_JOB_MEMORY_MIB where there is memory, or give job-steps more partitions."
        ),
        opens_alone=True,
    ),
    "self.telemetry_gap": Kind(
        standing=ASIDE,
        title="No telemetry from many nodes of {place}, across all places",
        meaning=(
            "no telemetry of many nodes at once, across all racks and switches or without any that is known"
        ),
        action="CHECK_NETWORK",
        text=(
            "Check how telemetry leaves {place} (brokers, network): no rack or switch explains the silent "
            "nodes."
        ),
        opens_alone=True,
        domain=DomainRule(
            evidence=_SILENCE,
            inhibits=_SILENCE,
            within_seconds=OUTAGE_SECONDS,
            hypothesis="self",
            family="telemetry",
            of_cluster=True,
        ),
        found_anew=True,
    ),
    "self": Kind(
        standing=ASIDE,
        meaning="slowrank itself [is blind](operations.md#when-slowrank-is-blind)",
        action="NONE",
        text="slowrank itself is impaired; see its metrics.",
        opens_alone=True,
    ),
}

_UNKNOWN = Kind(action="WATCH", text="Watch {place}.")


def kind_of(name: str) -> Kind:
    """Return the row of a kind, else of its family (``throttle.board`` is a ``throttle``), else a default.

    An XID has the row of NVIDIA's catalogue; one that is not in it has that of ``xid``.
    """
    own = KINDS.get(name) or XID_KINDS.get(name)
    if own is not None:
        return own
    number = xid_of(name)
    if number is not None:
        return _uncatalogued(number)
    return KINDS.get(name.partition(".")[0]) or _UNKNOWN


def cause_name(hypothesis: str) -> str:
    """Return a cause in a few words: the phrase of its row, else its name (``link: xgmi errors``)."""
    return kind_of(hypothesis).phrase or hypothesis.replace(".", ": ").replace("_", " ")


def row_of(name: str) -> str:
    """Return the name of the row of ``KINDS`` that covers a kind, which its runbook has too.

    All XIDs but those with a row of their own are ``xid``. A kind without any row keeps its name.
    """
    family = name.partition(".")[0]
    return name if name in KINDS or family not in KINDS else family


def nearest_kind(name: str) -> str:
    """Return the kind or family of findings of which ``name`` is a misspelling; else an empty string."""
    known = {kind for kind, row in KINDS.items() if row.reported_as in ("finding", "family")}
    known |= {kind.partition(".")[0] for kind in known}
    # Chosen: two letters of twenty; members of one family differ by more.
    return "" if name in known else next(iter(get_close_matches(name, sorted(known), n=1, cutoff=0.9)), "")


@lru_cache(maxsize=256)
def _uncatalogued(number: int) -> Kind:
    meaning = xid(number).meaning
    return replace(
        KINDS["xid"], title=f"{{place}} reports XID {number}: {meaning}", phrase=f"XID {number}, {meaning}"
    )
