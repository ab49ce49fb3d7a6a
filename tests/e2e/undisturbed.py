"""A small cluster's story, the same for every run, and what must come of it whatever happens on the way."""

import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from alerts.cases.lifecycle import NOTIFIED
from alerts.report.runbook import with_runbook
from benchmarks.chaos.story import roll_up_rows
from simulator import Cluster, ClusterSpec
from simulator.cluster.layout import JobSpec
from simulator.faults.fault import Fault
from slowrank.settings import Settings
from slowrank.telemetry import NodeEvent, Record
from store.findings.rows import document
from streams.files.replay import findings_of
from streams.pipeline import local_pipeline

SECONDS = 300
NODES, GPUS = 4, 4
CLUSTER = "prod"


@dataclass(frozen=True, slots=True)
class Story:
    """Records in the order they were made, and what one process that nothing disturbs makes of them.

    ``findings``: id -> finding.v1 object in its last version, also of what was only suspected; ``rows``: how
    many records each roll-up row must hold.
    """

    records: list[Record]
    findings: dict[str, dict[str, Any]]
    rows: Counter[tuple[Any, ...]]

    @property
    def news(self):
        """Ids of the findings people are told of."""
        return {id_ for id_, doc in self.findings.items() if doc["status"] in NOTIFIED}


def story() -> Story:
    """Five minutes of a job of 16 ranks: a GPU of node 1 slows down, a GPU of node 3 has an XID."""
    start = float(int(time.time())) - SECONDS - 5
    job = JobSpec(dp=NODES, tp=GPUS, step_seconds=1.0)
    slow = Fault(kind="clock_lock", node=1, gpu=2, onset=90, magnitude=1.35)
    spec = ClusterSpec(
        nodes=NODES,
        gpus=GPUS,
        nics=GPUS,
        name=CLUSTER,
        jobs=(job,),
        start=start,
        # Two nodes share each partition in use. Alone in one, a node that a busy machine feeds no faster than
        # time passes has a clock that is off, by all that shows there; two are a recording.
        node_prefix="gpu-",
    )
    xid = NodeEvent(
        cluster=CLUSTER,
        node=spec.node_name(3),
        boot_id="sim-boot-1",
        seq=1,
        ts=start + 150.5,
        source="kmsg",
        code="xid.48",
        severity="critical",
        subject={"gpu_index": 0},
        message="NVRM: Xid (PCI:0000:1a:00): 48, Double Bit ECC Error",
    )
    records = sorted([*Cluster(spec, seed=7, faults=[slow]).run(SECONDS), xid], key=lambda r: r.ts)
    runbooks = Settings().runbooks()
    found = {
        finding.id: document(with_runbook(finding, runbooks))
        for finding in findings_of(records, local_pipeline())
    }
    return Story(records, found, roll_up_rows(records))
