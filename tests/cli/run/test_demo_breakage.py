"""What one breaks in the demo is found by the product's own pipeline, and a deploy is not."""

from typing import Any

import numpy as np
import pytest

from cli.run.demo_breakage import Breakage, concerns
from cli.run.demo_scenario import draw
from streams.config.settings import Tuning
from streams.pipeline import local_pipeline

START = 1_795_160_400.0
ASKED_AT = 130.0
SECONDS = 60.0


def test_a_finding_counts_for_its_place_kind_and_time_alone():
    """Another node, GPU or kind does not, nor one that began before; a hang may be the job's."""
    cluster = draw(7, start=START)
    breakage = Breakage(cluster, np.random.default_rng(1))
    for name in ("thermal", "hang", "switch"):
        breakage.begin(name)
    breakage.apply(20.0)
    thermal, hang, switch = cluster.truth[1:]

    def found(kind, onset=START + 25.0, **subject):
        return {
            "kind": kind,
            "onset": np.datetime64(int(onset * 1000), "ms").item().isoformat() + "+00:00",
            "subject": subject,
        }

    slow = found("straggler.fail_slow", node=thermal.node, gpu_index=thermal.gpu_index)
    assert concerns(slow, thermal)
    assert not concerns(slow | {"kind": "hang.job"}, thermal)
    assert not concerns(found("straggler.fail_slow", node=thermal.node, gpu_index=99), thermal)
    assert not concerns(found("straggler.fail_slow", node="other", gpu_index=thermal.gpu_index), thermal)
    assert not concerns(slow | {"onset": found("x", onset=START - 60.0)["onset"]}, thermal)
    assert concerns(found("hang.job", job_id="812345"), hang)
    assert concerns(found("node.silent", switch="leaf-0001"), switch)
    assert concerns(found("node.silent", node=switch.nodes[3]), switch)


def test_every_second_deploy_takes_the_first_back():
    """Else the job would be slower with every one."""
    breakage = Breakage(draw(7, start=START), np.random.default_rng(1))
    for at in (20.0, 40.0, 60.0):
        assert not breakage.apply(at)
        breakage.begin("deploy")
        assert breakage.apply(at) == [breakage.begun()[0]]
    assert [one.title.split()[-3] for one in breakage.begun()] == ["1.12x", "0.89x", "1.12x"]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_what_is_broken_is_found_and_a_deploy_is_not():
    """Each in a run of its own, within a minute; the deploy in the same run as nothing else."""
    for name, seconds in (
        ("thermal", 20.0),
        ("nic", 45.0),
        ("hang", 20.0),
        ("switch", 20.0),
        ("deploy", None),
    ):
        cluster = draw(7, start=START)
        breakage = Breakage(cluster, np.random.default_rng(3))
        pipeline, last = local_pipeline(Tuning()), dict[str, Any]()
        for record in cluster.run(ASKED_AT + SECONDS):
            if record.ts - START > ASKED_AT and not breakage.begun():
                breakage.begin(name)
                breakage.apply(ASKED_AT)
            last |= {f.id: f.to_json() for f in pipeline.process(record) if f.status == "open"}
        breakage.follow(last.values())
        (begun,) = breakage.begun()
        if seconds is None:
            assert (begun.benign, begun.finding) == (True, None)
        else:
            assert begun.seconds is not None, name
            assert begun.seconds < seconds, name
        # Besides it the demo's own fault was found, and nothing else.
        assert len(last) == (1 if seconds is None else 2), [f["title"] for f in last.values()]
