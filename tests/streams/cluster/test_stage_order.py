"""FindingStage under any delivery: the set of suspicions decides, not how they came."""

import json
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alerts.cases.lifecycle import NOTIFIED
from alerts.finding import Finding
from slowrank.telemetry import Evidence, HangVote, Subject, Suspicion
from streams.cluster.stage import FindingStage

T0 = 1_795_160_000.0
SPAN = 100

gpus = st.integers(0, 3)
states = st.sampled_from(["raise", "update", "clear"])


@st.composite
def job_side(draw):
    """What JobStage may say: slow ranks of one node, or that the job stands still."""
    gpu, hang = draw(gpus), draw(st.integers(0, 5)) == 0
    rank = Subject(type="gpu", cluster="c", node="n1", gpu_index=gpu, rank=gpu, job_id="j")
    return {
        **({"signal": "no_progress"} if hang else {}),
        "detector": "peer_step",
        "family": "job" if hang else "timing",
        "kind": "hang.job" if hang else "straggler.fail_slow",
        "subject": Subject(type="job", cluster="c", job_id="j") if hang else rank,
        "overwhelming": draw(st.booleans()),
        "log_likelihood_ratio": 5.0,
        "job_slowdown_ratio": draw(st.sampled_from([1.0, 1.2, 2.0])),
        "gpus": 16,
        "nodes": 1,
    }


@st.composite
def node_side(draw):
    """What NodeStage may say of that node: clocks, events, the host, silence, idle machines."""
    family, kind, whole = draw(
        st.sampled_from(
            [
                ("clocks", "throttle.thermal", False),
                ("event", "xid.79", False),
                ("host", "host.cpu_contention", True),
                ("silence", "exporter.stale", True),
                ("silence", "node.silent", True),
                ("nic", "hang.job", True),
            ]
        )
    )
    place = {"type": "node"} if whole else {"type": "gpu", "gpu_index": draw(gpus)}
    return {
        **({"signal": "idle"} if kind == "hang.job" else {}),
        "detector": f"rule.{kind}",
        "family": family,
        "kind": kind,
        "subject": Subject(cluster="c", node="n1", job_id="j", **place),
        "overwhelming": draw(st.booleans()),
        "log_likelihood_ratio": draw(st.sampled_from([-1.0, 2.0, 6.0])),
    }


@st.composite
def stream(draw, side):
    """A stage's output: batches in the order of event time, one word about a case in each."""
    times = sorted(draw(st.sets(st.integers(0, SPAN), max_size=8)))
    batches = []
    for ts in times:
        batch = [suspicion(draw, draw(side), T0 + ts) for _ in range(draw(st.integers(1, 4)))]
        batches.append(list({(s.kind, s.subject.gpu_index): s for s in batch}.values()))
    return batches


def suspicion(draw, claim, ts):
    onset = ts - draw(st.integers(0, 90))
    value = Evidence(
        metric="m", unit="s", detector=claim["detector"], value=draw(st.sampled_from([1.0, 2.0]))
    )
    state, score = draw(states), draw(st.sampled_from([1.0, 3.0]))
    signs = dict.fromkeys(("both_signs", "lasting"), score > 1.0) if claim.get("signal") == "idle" else {}
    return (HangVote if "signal" in claim else Suspicion)(
        cluster="c",
        state=state,
        ts=ts,
        onset=onset,
        onset_lo=onset - 1,
        onset_hi=onset + 1,
        score=score,
        slowdown_ratio=1.3,
        evidence=(value,),
        **signs,
        **claim,
    )


@st.composite
def delivery(draw, job, node):
    """The two streams interleaved anyhow, with repeats of what has been delivered and ticks in between.

    Ticks may be ahead of what the slower stage still has to say.
    """
    rest, delivered, steps = [list(job), list(node)], [], []
    while any(rest):
        side = draw(st.sampled_from([i for i in (0, 1) if rest[i]]))
        batch = rest[side].pop(0)
        delivered += batch
        steps += batch
        if draw(st.integers(0, 3)) == 0:
            steps.append(draw(st.sampled_from(delivered)))
        if draw(st.integers(0, 2)) == 0:
            steps.append(max(s.ts for s in delivered))
    return steps


def play(steps):
    """Return all versions that came out, and the stage's last word on each finding as JSON text."""
    stage = FindingStage()
    versions: list[Finding] = []
    for step in steps:
        versions += stage.tick(step) if isinstance(step, float) else stage.process(step)
    for at in (SPAN, 2000, 200_000):
        versions += stage.tick(T0 + at)
    last = {f.id: f for f in versions}
    return versions, json.dumps([last[i].to_json() for i in sorted(last)], sort_keys=True), stage


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_delivery_ends_in_the_same_findings(data):
    """Interleaving, repeats and ticks change nothing in the last version of any finding, ids included."""
    job, node = data.draw(stream(job_side())), data.draw(stream(node_side()))
    straight = sorted(chain(*job, *node), key=lambda s: s.ts)
    mixed = data.draw(delivery(job, node))
    assert play(mixed)[1] == play(straight)[1]


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_life_keeps_its_rules(data):
    """An id belongs to one cause, nothing opens before it was suspected, everything ends, nothing is kept."""
    job, node = data.draw(stream(job_side())), data.draw(stream(node_side()))
    versions, _, stage = play(data.draw(delivery(job, node)))
    keys: dict[str, str] = {}
    for finding in versions:
        assert keys.setdefault(finding.id, finding.dedup_key) == finding.dedup_key
        assert len(finding.title) <= 120
        assert finding.onset_lo <= finding.onset <= finding.onset_hi
        assert 0 <= finding.confidence <= 1
        assert (finding.resolved_at is not None) == (finding.status in ("resolved", "expired"))
        if finding.status in NOTIFIED:
            assert finding.detected_at >= min(s.ts for s in chain(*job, *node))
    assert all(f.status in ("resolved", "expired") for f in {f.id: f for f in versions}.values())
    stage.tick(T0 + 10 * 86400)
    assert stage._timelines == {}
