"""An XID of one GPU of a node all of whose GPUs are slow: one finding, whichever came first."""

import numpy as np
import pytest

from alerts.cases.lifecycle import NOTIFIED
from slowrank.telemetry import JobSteps, NodeEvent
from slowrank.telemetry.columns import pack
from slowrank.telemetry.schema import STEP_V1
from streams.pipeline import local_pipeline

T0, RANKS, STEPS, SLOW = 1_795_160_000.0, 32, 130, 60


def found(code, logged_at, *, slow=range(8, 16)):
    """Open findings that no other explains, of a job of four nodes; ranks are slow from step 60 on, and GPU 5
    of the second node logs ``code`` as a step begins."""
    rng, pipeline, shown = np.random.default_rng(1), local_pipeline(), {}
    ts = T0
    for step in range(STEPS):
        compute = rng.lognormal(0, 0.005, RANKS)
        compute[list(slow)] *= 1.4 if step >= SLOW else 1.0
        whole = float(compute.max()) + 0.1
        records: list[NodeEvent | JobSteps] = []
        if step == logged_at:
            records.append(
                NodeEvent(
                    cluster="c",
                    node="n1",
                    ts=ts,
                    source="kmsg",
                    code=code,
                    severity="error",
                    subject={"gpu_index": 5},
                )
            )
        ts += whole
        for first in range(0, RANKS, 8):
            rows = [
                {
                    "step": step,
                    "rank": rank,
                    "local_rank": rank - first,
                    "gpu_index": rank - first,
                    "ts": ts,
                    "step_seconds": whole,
                    "compute_seconds": float(compute[rank]),
                    "wait_seconds": whole - float(compute[rank]),
                }
                for rank in range(first, first + 8)
            ]
            records.append(
                JobSteps(
                    schema=1,
                    cluster="c",
                    job_id="j",
                    node=f"n{first // 8}",
                    boot_id="b",
                    seq=step,
                    ts=ts,
                    world_size=RANKS,
                    rows=pack(STEP_V1, rows),
                )
            )
        for finding in (f for record in records for f in pipeline.process(record)):
            shown[finding.id] = finding
    shown |= {finding.id: finding for finding in pipeline.finish()}
    return [f for f in shown.values() if f.status in NOTIFIED and f.group_key is None]


@pytest.mark.parametrize("logged_at", [55, 75])
def test_one_that_opens_nothing_alone_is_evidence_of_the_node(logged_at):
    [finding] = found("xid.13", logged_at)

    assert (finding.kind, finding.subject.type, finding.subject.node) == ("straggler.fail_slow", "node", "n1")
    assert "xid.13" in {piece.metric for piece in finding.evidence}


@pytest.mark.parametrize("logged_at", [55, 75])
def test_a_fatal_one_explains_the_slow_node(logged_at):
    """No rank has a finding of its own beside it."""
    [finding] = found("xid.94", logged_at)

    assert (finding.kind, finding.subject.gpu_index) == ("ecc.uncorrectable", 5)
    assert finding.gpu_hours_lost


def test_one_on_the_gpu_that_alone_is_slow_leads():
    """Where the others of its node are as fast as before, it is the cause."""
    [finding] = found("xid.13", 55, slow=[13])

    assert (finding.kind, finding.subject.gpu_index) == ("xid.13", 5)
