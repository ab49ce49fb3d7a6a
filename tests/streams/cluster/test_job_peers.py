"""Nodes and GPUs that became unlike the others of their job as it slowed down."""

import pickle
import random
from typing import Any

import msgspec
import numpy as np
import pytest

from slowrank.telemetry import MinuteMeans, StepsReported
from streams.cluster.job_peers import JobPeers
from streams.config.stages import finding_stage
from streams.config.toml_file import tuning_of

T0 = 1_795_160_040.0
POWER, TENSOR, BYTES = "gpu.power_watts", "gpu.tensor_active_ratio", "nic.port.tx_bytes_total"
USED, CPU, LOAD = "gpu.utilization_ratio", "host.cpu.utilization_ratio", "host.load1"
WAIT, FREE, ALL = "nic.port.xmit_wait_ticks_total", "host.memory.available_bytes", "host.memory.total_bytes"
USUAL = {USED: 0.99, POWER: 500.0, BYTES: 1e9, CPU: 0.1, LOAD: 20.0, WAIT: 1e6, FREE: 1.4e12, ALL: 2e12}

# What a job shows of a step that takes 1.3 times as long.
SLOWED = {BYTES: 1 / 1.3, POWER: 0.92}
# Of the node that is odd, times its usual reading.
BUSY = {CPU: 7.0, LOAD: 6.0}

ODD_SINCE = 12


def minutes(until, odd=None, job=None, *, nodes=6, since=ODD_SINCE, gpu=None, noise=0.01, seed=1, till=999):
    """The minutes of a job which is slower from one of them on (``job``: factors by metric), and of which n2
    is ``odd`` (factors), or its GPU 3 alone (``gpu``: factors), from then on."""
    rng = np.random.default_rng(seed)
    found = []
    for at in range(until):
        for node in range(nodes):
            read = {name: x * float(rng.normal(1.0, noise)) for name, x in USUAL.items()}
            each = {m: np.full(8, USUAL[m]) * rng.normal(1.0, noise, 8) for m in (USED, POWER)}
            if since <= at < till:
                changed = [job or {}, odd or {}] if node == 2 else [job or {}]
                read = {m: float(x * np.prod([c.get(m, 1.0) for c in changed])) for m, x in read.items()}
                for metric, values in each.items():
                    values *= (job or {}).get(metric, 1.0)
                    if node == 2:
                        values[3] *= (gpu or {}).get(metric, 1.0)
            found.append(
                MinuteMeans(
                    cluster="c",
                    node=f"n{node}",
                    job_id="j",
                    ts=T0 + 60 * at + 70,
                    start=T0 + 60 * at,
                    samples=6,
                    means=read,
                    gpus=tuple("01234567"),
                    of_gpus={m: tuple(values.tolist()) for m, values in each.items()},
                )
            )
    return found


def suspicions(messages, *, peers=None, until=90):
    """What is found, as messages come when they are due."""
    peers, out = peers or JobPeers(), []
    for at in range(until):
        for message in messages:
            if T0 + 60 * at <= message.ts < T0 + 60 * at + 60:
                peers.update(message)
        out += peers.due(T0 + 60 * at + 10)
    return out


def found(messages, **more):
    """Minute, state, kind, node and GPU of what is found."""
    return [
        ((s.ts - T0 - 10) / 60, s.state, s.kind, s.subject.node, s.subject.gpu_index)
        for s in suspicions(messages, **more)
    ]


def test_other_load_on_one_host_that_slows_the_job():
    """After four minutes it is a finding by itself, with what the job lost."""
    first, *rest = suspicions(minutes(18, BUSY, SLOWED))
    assert (first.state, first.kind, first.subject.node) == ("raise", "host.cpu_contention", "n2")
    assert (first.ts, first.onset) == (T0 + 60 * 16 + 10, T0 + 60 * ODD_SINCE)
    assert (first.overwhelming, first.severity, first.family) == (True, "warning", "host")
    assert [e.metric for e in first.evidence] == [LOAD, CPU, BYTES]
    cpu = first.evidence[1]
    assert cpu.value == pytest.approx(0.7, rel=0.1)
    assert cpu.peers is not None
    assert (cpu.peers.n, cpu.peers.median) == (5, pytest.approx(0.1, rel=0.1))
    assert first.evidence[2].value == pytest.approx(1e9 / 1.3, rel=0.05)
    assert {s.state for s in rest} == {"update", "clear"}


@pytest.mark.parametrize(
    ("odd", "gpu", "kind", "index"),
    [
        ({WAIT: 50.0}, None, "gray.node", None),
        ({POWER: 0.8}, None, "gray.node", None),
        ({FREE: 0.3}, None, "host.memory_pressure", None),
        ({}, {POWER: 1.25}, "gray.node", 3),
        ({}, {POWER: 0.75}, "gray.node", 3),
    ],
)
def test_what_makes_a_machine_unlike_the_others(odd, gpu, kind, index):
    """The node, or the GPU where it alone is unlike the others of its node."""
    states = found(minutes(17, odd, SLOWED, gpu=gpu), until=17)
    assert states == [(16.0, "raise", kind, "n2", index)]


@pytest.mark.parametrize(
    ("odd", "job", "more"),
    [
        pytest.param(BUSY, None, {}, id="no harm to the job"),
        pytest.param(None, SLOWED, {}, id="no node stands out"),
        pytest.param({CPU: 2.0}, SLOWED, {}, id="CPUs are free"),
        pytest.param({FREE: 1.4}, SLOWED, {}, id="more memory"),
        pytest.param(BUSY, {BYTES: 0.1, POWER: 0.5}, {}, id="the job stands still"),
        pytest.param(BUSY, {BYTES: 0.7, "gpu.pcie.tx_bytes_per_second": 1.3}, {}, id="other work"),
        pytest.param(BUSY, SLOWED, {"nodes": 3}, id="too few others"),
        pytest.param(BUSY, SLOWED, {"since": 4}, id="no past yet"),
        pytest.param(BUSY, SLOWED, {"till": ODD_SINCE + 3}, id="three minutes"),
    ],
)
def test_what_names_nobody(odd, job, more, monkeypatch):
    """Without harm, without one that stands out, or for less than four minutes."""
    monkeypatch.setitem(USUAL, "gpu.pcie.tx_bytes_per_second", 1e9)
    assert found(minutes(40, odd, job, **more)) == []


def test_several_nodes_that_change_at_once_name_nobody():
    """Roles change, as when a job is sharded anew."""
    rows = [
        msgspec.structs.replace(row, means=row.means | ({CPU: 0.7} if row.start >= T0 + 720 else {}))
        if row.node == "n4"
        else row
        for row in minutes(40, BUSY, SLOWED)
    ]
    assert found(rows) == []


def test_what_is_over_is_cleared_and_may_come_again():
    """Once nothing lasted in five windows; nothing of the fault became usual."""
    rows = minutes(60, BUSY, SLOWED, till=40)
    states = found(rows)
    assert states[0][:2] == (16.0, "raise")
    assert [s[1] for s in states[1:-1]] == ["update"] * 24
    assert states[-1][:2] == (45.0, "clear")


def test_a_job_that_ends_clears_what_was_raised():
    """Nothing is known of it any more."""
    states = found(minutes(18, BUSY, SLOWED))
    assert [s[:2] for s in states] == [(16.0, "raise"), (17.0, "update"), (18.0, "update"), (23.0, "clear")]


def test_where_step_rows_come_they_decide():
    """Nothing is raised, and what was raised ends."""
    steps = [StepsReported(cluster="c", ts=T0 + 60 * at, job_id="j") for at in (1, 17)]
    rows = minutes(30, BUSY, SLOWED)
    assert found([steps[0], *rows]) == []
    assert [s[1] for s in found([steps[1], *rows])] == ["raise", "clear"]


def test_steps_reported_out_of_order_or_far_ahead():
    """The latest report counts, but one of a wrong clock does not."""
    rows, now = minutes(18, BUSY, SLOWED), T0 + 60
    for reported, raised in (((-3000.0, -90_000.0), []), ((-90_000.0,), ["raise"]), ((9e9,), ["raise"])):
        peers = JobPeers()
        list(peers.due(now))
        for ts in reported:
            peers.update(StepsReported(cluster="c", ts=now + ts, job_id="j"))
        assert [s[1] for s in found(rows, peers=peers)][:1] == raised


def test_nodes_without_a_job_are_not_compared():
    """Which of them belong together is not known."""
    rows = [msgspec.structs.replace(row, job_id=None) for row in minutes(30, BUSY, SLOWED)]
    assert found(rows) == []


def test_a_lost_gpu_is_no_departure_of_the_others():
    """A node with other GPUs begins anew."""
    rows = [
        msgspec.structs.replace(
            row, gpus=row.gpus[1:], of_gpus={m: x[1:] for m, x in row.of_gpus.items()}, means=row.means
        )
        if row.node == "n2" and row.start >= T0 + 60 * ODD_SINCE
        else row
        for row in minutes(24, None, SLOWED)
    ]
    assert found(rows) == []


def test_nodes_without_gpus_are_compared():
    """By their hosts and ports."""
    rows = [msgspec.structs.replace(row, gpus=(), of_gpus={}) for row in minutes(18, BUSY, SLOWED)]
    assert found(rows)[0] == (16.0, "raise", "host.cpu_contention", "n2", None)


def test_what_was_raised_ends_where_the_job_goes_on_with_few_nodes():
    """Without the machine, on fewer nodes than are compared."""
    rows = minutes(60, BUSY, SLOWED, nodes=4, till=20)
    states = found([r for r in rows if r.node != "n2" or r.start < T0 + 1200])
    assert [s[:2] for s in (states[0], states[-1])] == [(16.0, "raise"), (25.0, "clear")]


def test_a_node_that_stays_as_all_others_are_replaced_is_not_named():
    """It alone has a past with which the new ones compare."""
    rows = [
        msgspec.structs.replace(
            row, node=f"{row.node}-new", means=row.means | {POWER: 0.9 * row.means[POWER]}
        )
        if row.node != "n2" and row.start >= T0 + 60 * ODD_SINCE
        else row
        for row in minutes(30, None, SLOWED)
    ]
    assert found(rows) == []


SPARE = {USED: 0.0, POWER: 75.0, BYTES: 2e4, CPU: 0.01, LOAD: 0.5, WAIT: 1e3}


@pytest.mark.parametrize(
    ("works", "changed"),
    [
        pytest.param(
            lambda r: {"means": r.means | SPARE, "of_gpus": {USED: (0.0,) * 8, POWER: (75.0,) * 8}},
            SLOWED,
            id="spare",
        ),
        pytest.param(
            lambda r: {"of_gpus": {m: (*x[:7], SPARE[m]) for m, x in r.of_gpus.items()}},
            SLOWED,
            id="spare GPU",
        ),
        pytest.param(
            lambda r: {
                "gpus": (),
                "of_gpus": {},
                "means": {m: x for m, x in r.means.items() if not m.startswith("gpu.")} | {BYTES: 3e5},
            },
            SLOWED,
            id="no GPUs",
        ),
        pytest.param(
            lambda r: {"means": r.means | {BYTES: r.means[BYTES] + 1e9}}, SLOWED, id="other traffic"
        ),
        pytest.param(
            lambda r: {"means": r.means | {POWER: 75.0 + 0.4 * r.means[POWER]}},
            {BYTES: 0.75, POWER: 0.75},
            id="less power",
        ),
    ],
)
def test_what_does_other_work_need_not_follow_the_job(works, changed):
    """A healthy one is not named as the others become slower, and hides no other that is not well."""
    rows = [
        msgspec.structs.replace(r, **works(r)) if r.node == "n4" else r for r in minutes(40, None, changed)
    ]
    assert found(rows) == []
    rows = [
        msgspec.structs.replace(r, **works(r)) if r.node == "n4" else r for r in minutes(40, BUSY, changed)
    ]
    assert found(rows)[0][1:4] == ("raise", "host.cpu_contention", "n2")


def test_readings_that_are_missing_or_absurd_change_nothing():
    """What some node never reads, one that is not read for a minute, and numbers that are none."""
    rows = []
    for row in minutes(18, BUSY, SLOWED):
        means = dict(row.means)
        if row.node == "n1":
            del means[CPU], means[POWER]
        if row.node == "n5":
            means |= {LOAD: float("nan"), FREE: 1e300, ALL: 0.0}
        rows.append(msgspec.structs.replace(row, means=means))
    assert found(rows)[0] == (16.0, "raise", "host.cpu_contention", "n2", None)


def test_the_order_of_nodes_and_repeats_change_nothing():
    """And neither does a restart from a snapshot between two minutes."""
    rows = minutes(24, BUSY, SLOWED, till=20)
    shuffled = [row for row in rows for _ in range(2)]
    random.Random(3).shuffle(shuffled)
    assert suspicions(shuffled) == suspicions(rows)
    first = JobPeers()
    head = suspicions([r for r in rows if r.start < T0 + 60 * 17], peers=first, until=18)
    again = pickle.loads(pickle.dumps(first))
    tail = suspicions([r for r in rows if r.start >= T0 + 60 * 17], peers=again)
    assert head + tail == suspicions(rows)


def test_of_two_minutes_with_as_many_samples_the_same_is_taken_in_any_order():
    """Two machines of one name, or one that two workers saw half of the minute each."""
    rows = minutes(18, BUSY, SLOWED)
    other = [
        msgspec.structs.replace(r, means=r.means | {CPU: 0.1, LOAD: 20.0}) for r in rows if r.node == "n2"
    ]
    assert suspicions([*rows, *other]) == suspicions([*other, *rows])


def test_a_late_minute_changes_nothing():
    """As does one far ahead, and one that is none."""
    rows = minutes(18, BUSY, SLOWED)
    late = [
        msgspec.structs.replace(row, ts=row.ts + 600, means={}, samples=99)
        for row in rows
        if row.node == "n1"
    ]
    odd = [msgspec.structs.replace(rows[0], start=start, ts=T0 + 600) for start in (T0 + 90_000, T0 + 601)]
    assert suspicions([*rows, *late, *odd]) == suspicions(rows)


def test_its_mode_decides_what_becomes_of_it():
    """On it is a finding, on trial a finding in shadow, off nothing."""
    for mode, statuses in (("on", {False}), ("shadow", {True}), ("off", set())):
        table = {"detectors": {"job_peers": {"mode": mode}}}
        stage = finding_stage(tuning_of(table, file="f"))
        out: list[Any] = []
        for row in sorted(minutes(20, BUSY, SLOWED), key=lambda row: row.ts):
            stage.process(row)
        for at in range(0, 60 * 25, 10):
            out += stage.tick(T0 + at)
        assert {f.shadow for f in out if f.kind == "host.cpu_contention"} == statuses
