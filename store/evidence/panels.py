"""Decides what the plots of a finding show: whose series, of which metrics, beside which peers."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from psycopg import Connection

from alerts.report.title import place
from slowrank.telemetry.records import Subject
from store.telemetry.metrics import StoredMetric, stored_metric
from store.telemetry.windows import Selection, of_devices, of_ranks, peer_nodes

PlotRole = Literal["peers", "baseline", "cause"]
Baseline = Mapping[str, Any]

# What shows a cause, by the beginning of its name, for findings whose evidence has no stored metric of it.
_SHOWS: tuple[tuple[str, str], ...] = (
    ("throttle.power", "gpu.power_watts"),
    ("throttle.thermal", "gpu.temp_celsius"),
    ("throttle", "gpu.clock.sm_hz"),
    ("clock", "gpu.clock.sm_hz"),
    ("ecc", "gpu.ecc.corrected_total"),
    ("link.pcie", "gpu.pcie.replay_total"),
    ("link.nvlink", "gpu.nvlink.crc_errors_total"),
    ("link", "nic.port.xmit_wait_ticks_total"),
    ("network", "nic.port.tx_bytes_total"),
    ("data_loading", "host.pressure.io_some_ratio"),
    ("host.memory", "host.memory.available_bytes"),
    ("host", "host.cpu.utilization_ratio"),
    ("hang", "gpu.utilization_ratio"),
    ("straggler", "gpu.clock.sm_hz"),
)


@dataclass(frozen=True, slots=True)
class Chosen:
    """One metric with the rows to read; ``subject`` and ``peers`` name whose line and whose band it is."""

    metric: StoredMetric
    cluster: str
    selection: Selection
    subject: str
    peers: str

    @property
    def has_own(self) -> bool:
        """Whether the subject has rows of its own; a job is shown by the median of its ranks."""
        return self.selection.own != "false"


def main_metric(finding: Mapping[str, Any]) -> tuple[StoredMetric, Baseline | None] | None:
    """Return the first stored metric of a finding's evidence, and the baseline that a detector gave with it.

    A finding about a job or a rank whose evidence is stored nowhere is shown by its step times.
    """
    pieces = finding.get("evidence") or ()
    for piece in pieces:
        metric = stored_metric(str(piece.get("metric", "")).removesuffix(".ratio"))
        if metric is not None:
            # A baseline of ratios is not in the metric's unit, and the level of a counter is no rate.
            same = [] if metric.aggregate == "delta" else [p for p in pieces if p["metric"] == metric.name]
            return metric, next((p["baseline"] for p in same if p.get("baseline")), None)
    if (finding.get("subject") or {}).get("job_id"):
        steps = stored_metric("step_seconds")
        return None if steps is None else (steps, None)
    return None


def cause_metric(finding: Mapping[str, Any], main: StoredMetric | None) -> StoredMetric | None:
    """Return the metric that shows the suspected cause: of the evidence if it has one, else by its name."""
    for piece in finding.get("evidence") or ():
        metric = stored_metric(str(piece.get("metric", "")))
        if metric is not None and metric.owner != "rank" and metric != main:
            return metric
    hypothesis = str((finding.get("cause") or {}).get("hypothesis") or finding.get("kind", ""))
    named = next((metric for start, metric in _SHOWS if hypothesis.startswith(start)), None)
    metric = None if named is None else stored_metric(named)
    return None if metric == main else metric


def chosen(
    conn: Connection[Any], metric: StoredMetric, subject: Subject, *, since: datetime
) -> Chosen | None:
    """Return whose rows of ``metric`` show ``subject``; None where it has no series of this metric."""
    if metric.owner == "rank":
        return _of_steps(metric, subject)
    if not subject.node:
        return None
    nodes = peer_nodes(conn, subject.cluster, subject.node, job_id=subject.job_id, since=since)
    selection = of_devices(nodes, node=subject.node, instance=_instance(metric, subject))
    return Chosen(metric, subject.cluster, selection, place(subject), _peers(metric.owner, len(nodes)))


def _peers(owner: str, nodes: int) -> str:
    if owner == "host":
        return "the other nodes" if nodes > 1 else "other nodes, of which there are none"
    what = {"gpu": "GPUs", "nic": "ports"}[owner]
    return f"its node's other {what}" if nodes == 1 else f"the other {what} of {nodes} nodes"


def _of_steps(metric: StoredMetric, subject: Subject) -> Chosen | None:
    if not subject.job_id:
        return None
    own: list[int] | str | None = None
    if subject.rank is not None:
        own = [subject.rank]
    elif subject.type != "job":
        own = subject.node
    selection = of_ranks(subject.job_id, attempt=subject.attempt, own=own)
    peers = f"the {'other ' if own else ''}ranks of job {subject.job_id}"
    return Chosen(metric, subject.cluster, selection, place(subject), peers)


def _instance(metric: StoredMetric, subject: Subject) -> str | None:
    if metric.owner == "gpu" and subject.gpu_index is not None:
        return str(subject.gpu_index)
    if metric.owner == "nic" and subject.nic and subject.port:
        return f"{subject.nic}/{subject.port}"
    return None
