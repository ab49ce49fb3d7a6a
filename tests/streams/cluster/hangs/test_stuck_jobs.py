"""Hangs of jobs without step rows, from the samples of their nodes to the finding."""

import math
import random
from collections.abc import Callable, Iterable, Iterator

import pytest

from alerts.finding import Finding
from slowrank.telemetry import HangVote, NodeAnnounced, NodeSample, StepsReported, Subject
from slowrank.telemetry.columns import pack
from slowrank.telemetry.schema import GPU_V1, NIC_V1
from streams.cluster.stuck_jobs import Message, StuckJobs
from streams.pipeline import local_pipeline

EVERY, GPUS = 30, 8
T0 = 1_800_000_000.0

# Utilisation, watts, bytes a second and share of the memory in use. A node that spins waits for another one;
# one that stands idle, for its host.
WORK, SPIN, IDLE = (1.0, 600.0, 5e9, 0.8), (1.0, 200.0, 0.0, 0.8), (0.0, 110.0, 0.0, 0.8)
GONE, SAVE = (0.0, 80.0, 0.0, 0.0), (1.0, 200.0, 2e9, 0.8)

State = tuple[float, float, float, float]
At = Callable[[int, float], State]


def samples(
    at: At, *, nodes: int = 4, seconds: int = 3000, ports: bool = True, ended: float = math.inf
) -> Iterator[NodeSample]:
    """The samples of a job's nodes; ``at`` gives the state of a node after so many seconds. They name the job
    until it has ``ended``."""
    sent = [0.0] * nodes
    for tick in range(0, seconds, EVERY):
        for node in range(nodes):
            busy, watts, rate, memory = at(node, tick)
            sent[node] += rate * EVERY / 2
            gpu = {
                "gpu.power_watts": watts,
                "gpu.utilization_ratio": busy,
                "gpu.memory.used_bytes": memory * 8e10,
                "gpu.memory.total_bytes": 8e10,
            }
            port = {"nic.port.rx_bytes_total": int(sent[node]), "nic.port.tx_bytes_total": int(sent[node])}
            yield NodeSample(
                schema=1,
                cluster="c",
                node=f"n{node}",
                boot_id="b",
                seq=tick // EVERY,
                ts=T0 + tick + node,
                job_id="j" if tick < ended else None,
                gpu_ids=tuple(map(str, range(GPUS))),
                nic_ids=("mlx5_0/1",) if ports else (),
                gpu=pack(GPU_V1, [gpu] * GPUS),
                nic=pack(NIC_V1, [port]) if ports else b"",
                host=b"",
            )


def findings(records: Iterable[NodeSample]) -> list[Finding]:
    pipeline = local_pipeline()
    found = [f for record in records for f in pipeline.process(record)]
    found += pipeline.finish()
    assert not pipeline.set_aside
    return [f for f in found if f.status in ("open", "resolved")]


def hangs_at(stop: float, first: State = SPIN, *, late: float = 0.0) -> At:
    """A job that works and then spins, node 0 as ``first`` says; the others are ``late``."""
    return lambda node, t: WORK if t < stop + late * (node > 0) else first if node == 0 else SPIN


@pytest.mark.parametrize(("nodes", "ports"), [(4, True), (4, False), (1, True), (12, True)])
def test_a_job_whose_nodes_all_spin_is_hung(nodes, ports):
    """An error after three minutes and critical after five, with or without ports, on one node or many."""
    found = findings(samples(hangs_at(1500), nodes=nodes, ports=ports))
    assert {(f.kind, f.subject.job_id) for f in found} == {("hang.job", "j")}
    assert found[0].title == "Job j has stopped: its GPUs spin and do no work"
    assert found[0].severity == "error"
    assert 180 <= found[0].detected_at - T0 - 1500 <= 240
    critical = next(f for f in found if f.severity == "critical")
    assert critical.as_of is not None
    assert 290 <= critical.as_of - T0 - 1500 <= 360


@pytest.mark.parametrize(
    ("first", "late", "why"),
    [
        (SPIN, 0, None),
        (SPIN, 60, "n0: fell quiet"),
        (IDLE, 0, "n0: does not spin while the others do"),
        (GONE, 0, "n0: nothing of the job is left on its GPUs"),
    ],
)
def test_the_node_that_the_others_wait_for_is_named(first, late, why):
    """It stopped by more than a reading before the others, or does not spin, or the job has left it."""
    found = findings(samples(hangs_at(1500, first, late=late)))
    notes = [e.note for e in found[-1].evidence if e.metric == "hang.suspects"]
    assert [note[: len(why or "")] for note in notes] == ([why] if why else [])


def test_the_node_that_the_others_wait_for_is_named_after_the_end_of_the_job():
    """That nothing names the job there any more is no news about when it left that node."""
    stop, end = 1500, 2400

    def at(node: int, t: float) -> State:
        return GONE if t >= end else hangs_at(stop, GONE)(node, t)

    last = findings(samples(at, ended=end))[-1]
    assert (last.status, [s.subject.node for s in last.suspects]) == ("resolved", ["n0"])


def pauses(length: float, *, as_: State = SPIN, first: float = 1500) -> At:
    """A job that pauses for so long, again and again."""
    return lambda node, t: as_ if t >= first and (t - first) % 900 < length else WORK


@pytest.mark.parametrize(
    "at",
    [
        pauses(170),
        pauses(600, as_=SAVE),
        pauses(600, as_=IDLE),
        pauses(600, as_=(0.3, 300.0, 0.0, 0.8)),
        lambda node, t: SPIN if t < 1500 else WORK,
        lambda node, t: SPIN if 300 < t < 900 else WORK,
        lambda node, t: WORK if t < 1500 else GONE,
        lambda node, t: WORK if t < 1500 or node == 2 else SPIN,
        lambda node, t: SPIN if 900 + 400 * node <= t < 1600 + 400 * node else WORK,
        lambda node, t: (1.0, 380.0, 0.0, 0.8) if t >= 1500 else WORK,
        lambda node, t: (0.4, 250.0, 0.0, 0.8) if t % 600 < 300 else IDLE,
    ],
    ids=[
        "barrier",
        "checkpoint",
        "data stall",
        "evaluation",
        "start",
        "young job",
        "end",
        "one works",
        "one after the other",
        "serving",
        "inference",
    ],
)
def test_what_looks_like_a_hang_is_none(at):
    """Pauses, starts, ends and jobs whose nodes wait for one of them that works."""
    assert findings(samples(at)) == []


def test_a_pause_is_learned_and_a_hang_is_longer():
    """After a wait of 150 s, one of 270 s is a pause; the hang after it takes twice that."""

    def at(node: int, t: float) -> State:
        return SPIN if 1200 <= t < 1350 or 1800 <= t < 2070 or t >= 2700 else WORK

    found = findings(samples(at, seconds=3600))
    assert 2700 + 540 <= found[0].detected_at - T0 <= 2700 + 600


def announced(node: int, job: str | None = "j", ts: float = T0) -> NodeAnnounced:
    return NodeAnnounced(cluster="c", node=f"n{node}", job_id=job, ts=ts, gpus=8, ports=8)


def vote(node: int, ts: float, *, signal="idle", state="raise", stuck=T0 + 60, **more) -> HangVote:
    subject = Subject(type="node", cluster="c", node=f"n{node}", job_id="j")
    idle = {"stuck_since": stuck, "resting": True} if signal == "idle" else {}
    return HangVote(
        cluster="c", detector="quiet", family="clocks", kind="hang.job", signal=signal, state=state,
        subject=subject, ts=ts, onset=stuck, onset_lo=stuck - 30, onset_hi=stuck, score=2.0,
        log_likelihood_ratio=3.0, **(idle | more),
    )  # fmt: skip


def outcome(messages: Iterable[Message], *, until: float = 1000.0) -> list[tuple[str, float, bool, int]]:
    """The states and times of the votes that messages lead to, each taken when its time has passed."""
    jobs, out = StuckJobs(), list[HangVote]()
    for message in messages:
        jobs.update(message)
    for second in range(int(until)):
        out += jobs.due(T0 + second)
    return [(v.state, v.ts - T0, v.certain, v.nodes) for v in out]


def test_the_order_of_messages_and_of_looks_changes_nothing():
    """A hang of four nodes: raised with the last that suffices, certain, repeated, and cleared."""
    messages: list[Message] = [announced(n) for n in range(4)]
    messages += [vote(n, T0 + 240 + n) for n in range(4)]
    messages += [vote(n, T0 + 800 + n, state="clear", stuck=T0 + 60) for n in range(4)]
    expected = [
        ("raise", 243.0, False, 4),
        ("update", 360.0, True, 4),
        ("update", 660.0, True, 4),
        ("clear", 800.0, True, 4),
    ]
    assert outcome(messages) == expected
    random.Random(3).shuffle(messages)
    assert outcome(messages) == expected
    jobs = StuckJobs()
    for message in messages:
        jobs.update(message)
    assert [(v.state, v.ts - T0, v.certain, v.nodes) for v in jobs.due(T0 + 1000)] == expected


def test_nodes_that_have_left_the_job_do_not_count():
    """A node that has another job, or was let go, is no part of the stop; one without telemetry is."""
    nodes = [announced(n) for n in range(6)]
    two = [vote(n, T0 + 240) for n in range(2)]
    assert outcome([*nodes, *two]) == []
    moved = [announced(n, job, T0 + 100) for n, job in ((2, None), (3, "k"))]
    gone = vote(4, T0 + 100, signal="left", released=True)
    silent = vote(5, T0 + 100, signal="no_telemetry")
    assert outcome([*nodes, *two, *moved, gone, silent], until=300)[0] == ("raise", 240.0, False, 3)


def test_a_job_that_sends_steps_is_judged_by_them():
    """Its nodes alone make no hang of it."""
    messages: list[Message] = [
        announced(0),
        vote(0, T0 + 240),
        StepsReported(cluster="c", ts=T0 + 120, job_id="j"),
    ]
    assert outcome(messages) == []
    assert outcome(messages[:2], until=300) == [("raise", 240.0, False, 1)]


def test_jobs_and_nodes_are_bounded_and_forgotten():
    """Names come from outside: no more nodes than the limit, and none an hour after it was last announced."""
    jobs = StuckJobs(max_nodes=2)
    for n in range(3):
        jobs.update(announced(n))
    assert list(jobs.due(T0 + 1)) == []
    assert len(jobs) == 2
    assert list(jobs.due(T0 + 7300)) == []
    assert len(jobs) == 0


def test_a_hang_ends_when_its_nodes_are_forgotten():
    """Nothing is repeated for ever about a job that sends nothing more."""
    out = outcome([announced(0), vote(0, T0 + 240)], until=8000)
    assert out[-1][0] == "clear"
