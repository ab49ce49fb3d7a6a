"""The one line that names a finding: at most 120 characters, one template per kind."""

from collections.abc import Sequence

from slowrank.telemetry import Subject
from slowrank.telemetry.xids import xid, xid_of

MAX_TITLE = 120
_JOB_WIDE = ("imbalance.stage", "imbalance.workload", "group")

TEMPLATES: dict[str, str] = {
    "straggler.fail_slow": "{place} is {ratio} slower than {peers}",
    "straggler.intermittent": "{place} slows down again and again ({ratio})",
    "straggler.job_wide": "{place} is {ratio} slower than it was; no machine stands out",
    "imbalance.stage": "{place} carries {ratio} the compute of the others",
    "group": "{place} transfers {ratio} slower than the other groups",
    "imbalance.workload": "{place} is {ratio} slower than with evenly spread work",
    "hang.job": "{place} has stopped: no steps and no work on its machines",
    "hang.rank_missing": "{place} reports no steps while others go on",
    "gray.node": "{place} shows several weak signs of a fault",
    "node.silent": "{place} is silent",
    "node.lemon": "{place} fails again and again",
    "exporter.stale": "No telemetry from {place}",
    "throttle.thermal": "{place} is throttled by heat",
    "throttle.power": "{place} is throttled by power",
    "throttle.hw_slowdown": "{place} is slowed down by its hardware",
    "throttle.sync_boost": "{place} is held back by sync boost",
    "clock.low": "{place} runs at a low clock for no stated reason",
    "gpu.slow_reads": "{place} answers its driver slowly",
    "ecc.correctable_rate": "{place} corrects memory errors at a high rate",
    "ecc.uncorrectable": "{place} has uncorrectable memory errors",
    "ecc.row_remap_pending": "{place} waits for a reset to remap memory rows",
    "ecc.row_remap_failure": "{place} can remap no more memory rows",
    "xid.79": "{place} has fallen off the bus",
    "link.nvlink_degraded": "{place} has a degraded NVLink",
    "self.telemetry_gap": "No telemetry from many nodes of {place}, across all places",
    "link.nvswitch": "{place} has NVSwitch errors",
    "link.pcie_fatal": "{place} has lost its PCIe link",
    "link.pcie_uncorrected": "{place} has PCIe errors",
    "link.nic_errors": "{place} has link errors",
    "link.nic_flap": "{place} has lost its link",
    "link.nic_slow": "{place} is slower than its rail",
    "link.pcie_downgrade": "{place} runs on a narrowed PCIe link",
    "link.pcie_replay": "{place} repeats PCIe transfers",
    "fabric.rail_degraded": "{place} is degraded",
    "host.cpu_contention": "{place} shares its CPUs with something else",
    "host.memory_pressure": "{place} is short of memory",
    "host.hung_task": "{place} has processes that hang in the kernel",
    "host.clock_skew": "The clock of {place} is off",
    "data.loader_slow": "{place} waits for data",
    "training.loss_anomaly": "{place} has an abnormal loss or gradient",
    "self.job_memory": "slowrank runs out of memory for jobs: {place}",
    "startup.slow": "{place} starts slowly",
}


def title(
    kind: str,
    subject: Subject,
    *,
    ratio: float | None = None,
    peers: int | None = None,
    peer: str = "peer",
    own_past: bool = False,
    hypothesis: str | None = None,
) -> str:
    """Return the title, cut to 120 characters and without control characters.

    A slow job without a slow machine is named by its likeliest ``hypothesis``, where that has a template.
    ``peer`` is what ``peers`` counts; ``own_past``: it is slower than it was, and not than they are.
    """
    where = place(subject)
    if kind == "straggler.job_wide" and hypothesis in _JOB_WIDE:
        kind = hypothesis
        if kind == "imbalance.stage" and not subject.coords:
            where = f"A group of ranks of job {subject.job_id}"
    template = TEMPLATES.get(kind) or _named_by(kind)
    text = template.format(
        place=where,
        ratio="?x" if ratio is None else f"{ratio:.2f}x",
        peers="it was" if own_past else _count(peers, peer),
    )
    text = "".join(c if c.isprintable() else " " for c in text).replace(" ?x slower", " slower")
    return text if len(text) <= MAX_TITLE else text[: MAX_TITLE - 1] + "…"


def _named_by(kind: str) -> str:
    number = xid_of(kind)
    if number is not None:
        return f"{{place}} reports XID {number}: {xid(number).meaning}"
    return "{place}: " + kind.replace("{", "").replace("}", "")


def _count(peers: int | None, peer: str) -> str:
    if not peers:
        return "its peers"
    return f"{peers} {peer}s" if peers > 1 else f"1 {peer}"


def place(subject: Subject) -> str:
    """Return how people call the subject: ``gpu-0423 GPU 5 (rank 3389)``."""
    return _PLACES[subject.type](subject) if subject.type in _PLACES else _named(subject)


def _on_node(s: Subject) -> str:
    if not s.node and s.rank is not None:
        return f"Rank {s.rank} of job {s.job_id}"
    words = [s.node or ""]
    words += [f"GPU {s.gpu_index}"] if s.gpu_index is not None else []
    words += [f"(rank {s.rank})"] if s.rank is not None else []
    return " ".join(w for w in words if w) or _named(s)


def _job(s: Subject) -> str:
    if s.coords and set(s.coords) != {"pp"}:
        return f"Group {', '.join(f'{k}={v}' for k, v in sorted(s.coords.items()))} of job {s.job_id}"
    if s.coords:
        return f"Stage {s.coords['pp']} of job {s.job_id}"
    return f"Job {s.job_id}"


def _nic(s: Subject) -> str:
    return f"{s.node or ''} {s.nic or 'NIC'}{f'/{s.port}' if s.port else ''}".strip()


def _link(s: Subject) -> str:
    return f"Link {s.nic or ''} {s.port or '?'}–{s.peer_port or '?'}"


def _rack(s: Subject) -> str:
    return f"Rack {s.rack}"


def _switch(s: Subject) -> str:
    if s.rail is None:
        return f"Switch {s.switch}"
    return f"Rail {s.rail}" + (f" of switch {s.switch}" if s.switch else "")


def _site(s: Subject) -> str:
    return f"Cluster {s.cluster}"


def _named(s: Subject) -> str:
    return f"{s.type} {s.rail or s.rack or s.node or s.cluster}"


def _tensor_group(s: Subject) -> str:
    shared = ", ".join(f"{k}={v}" for k, v in sorted((s.coords or {}).items()))
    if not s.node or not shared:
        return f"{s.node or ''} Tensor-parallel group {shared} of job {s.job_id}".replace("  ", " ").strip()
    return f"{s.node} tensor-parallel group {shared}"


def places(subjects: Sequence[Subject]) -> str:
    """Return how people call several GPUs of a node at once: ``gpu-0423 GPUs 4, 5 (ranks 3388, 3389)``."""
    if len(subjects) == 1:
        return place(subjects[0])
    node, job = subjects[0].node, subjects[0].job_id
    indices = [str(s.gpu_index) for s in subjects if s.gpu_index is not None]
    ranks = ", ".join(str(s.rank) for s in subjects)
    if not node or len(indices) < len(subjects):
        return f"ranks {ranks} of job {job}" + (f" on {node}" if node else "")
    return f"{node} GPUs {', '.join(indices)} (ranks {ranks})"


_PLACES = {
    "gpu": _on_node,
    "rank": _on_node,
    "group": _tensor_group,
    "node": lambda s: s.node or _named(s),
    "exporter": lambda s: s.node or _named(s),
    "telemetry": lambda s: s.node or _site(s),
    "job": _job,
    "nic": _nic,
    "link": _link,
    "rack": _rack,
    "switch": _switch,
    "site": _site,
}
