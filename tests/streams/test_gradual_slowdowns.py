"""Step rows of a node that slows down gradually, to findings."""

import numpy as np
import pytest

from alerts.finding import Finding
from benchmarks.detection.step_jobs import records, synchronous
from streams.pipeline import local_pipeline
from tests.streams.job.job_tables import healthy


def ramp(seconds, to, over):
    """Return a job of three nodes of which the second becomes ``to`` times as slow over some steps."""
    work = healthy(steps=340, ranks=24, seconds=seconds, seed=1)
    work[:, 8:16] *= np.interp(np.arange(340), [120, 120 + over], [1.0, to])[:, None]
    return synchronous(work, overhead=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seconds", "to", "over"),
    [(25.0, 1.2, 144), (25.0, 1.1, 144), (25.0, 1.05, 144), (1.0, 1.1, 144), (25.0, 1.2, 1)],
)
def test_a_node_that_slows_down_is_one_finding(seconds, to, over):
    """Its ranks are found minutes apart, for the onset of a ramp is as vague as it takes to show."""
    pipeline = local_pipeline()
    last: dict[str, Finding] = {}
    for record in records(ramp(seconds, to, over)):
        last |= {f.id: f for f in pipeline.process(record)}
    [node] = [f for f in last.values() if f.status == "open" and f.kind == "straggler.fail_slow"]
    assert (node.subject.type, node.subject.node) == ("node", "node-0001")
    ranks = [f for f in last.values() if f.subject.type == "rank"]
    assert {f.group_key for f in ranks} == {node.dedup_key}
    # The first two may have been findings before the others showed.
    assert len([f for f in ranks if f.status == "resolved"]) <= 2
