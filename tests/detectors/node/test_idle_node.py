from dataclasses import replace

import numpy as np
import pytest

from detectors.node.idle_node import IdleNodeBank, IdleResult, NodeReading
from tests.detectors.state import state

GPUS = 4
NODE = np.array([0])


def reading(ts, *, nic=1e9, watts=600.0, busy=1.0, tensor=np.nan, memory=0.8):
    """One node's sample; a value for each GPU or one for all of them."""
    return NodeReading(
        ts=np.array([float(ts)]),
        nic=np.array([float(nic)]),
        power=np.full((1, GPUS), watts, float),
        utilization=np.full((1, GPUS), busy, float),
        tensor=np.full((1, GPUS), tensor, float),
        memory=np.full((1, GPUS), memory, float),
    )


HANG = {"nic": 0.0, "watts": 250.0}


def run(bank, seconds, **values) -> list[IdleResult]:
    return [bank.update(NODE, reading(second, **values)) for second in seconds]


def first_held(found):
    return next((i for i, quiet in enumerate(found) if quiet.held[0]), None)


@pytest.fixture
def working():
    bank = IdleNodeBank(1, GPUS)
    assert first_held(run(bank, range(120))) is None
    return bank


@pytest.mark.parametrize(
    ("values", "after"),
    [
        (HANG, 5),
        ({"nic": 0.0}, 30),
        ({"watts": 250.0}, 30),
        ({"watts": np.array([250.0] * 3 + [600.0])}, None),
        ({"nic": 0.0, "watts": 250.0, "busy": 0.5}, 30),
        ({"nic": 2e7}, None),
    ],
    ids=["both", "bytes", "power", "most-but-not-90%", "low-power-unused", "2%-of-bytes"],
)
def test_each_key_has_its_hold(working, values, after):
    """Both keys count after 5 s, one alone after 30 s, half a key never."""
    assert first_held(run(working, range(120, 200), **values)) == after


def test_both_keys_are_distinguished_from_one(working):
    """A checkpoint, in which GPUs spin, counts as both for 10 s of the evaluation after it, then as one."""
    found = run(working, range(120, 140), **HANG)
    assert [bool(q.both[0]) for q in found] == [False] * 5 + [True] * 15
    found = run(working, range(140, 180), nic=0.0)
    assert [bool(q.both[0]) for q in found] == [True] * 10 + [False] * 30
    assert all(q.held[0] for q in found)


def test_less_contrast_is_enough_with_no_bytes_and_makes_nothing_certain(working):
    """GPUs of a job that often waits stand out less when they spin: both keys are set, and never as
    lasting."""
    found = run(working, range(120, 240), nic=0.0, watts=400.0)
    assert next(i for i, quiet in enumerate(found) if quiet.both[0]) == 5
    assert first_held(found) == 5
    assert not any(quiet.lasting[0] or quiet.not_working[0] for quiet in found)


def test_less_contrast_alone_is_no_key(working):
    """A job that sends goes on working, at whatever power."""
    assert first_held(run(working, range(120, 240), watts=400.0)) is None


def test_power_about_the_limit_does_not_interrupt_both_keys(working):
    """Noise takes single GPUs over it and back; 0.58 of the usual power is spinning all the same."""
    rng = np.random.default_rng(0)
    found = [
        working.update(NODE, reading(t, nic=0.0, watts=rng.normal(355.0, 10.0, GPUS)))
        for t in range(120, 150)
    ]
    assert first_held(found) == 5


def test_tensor_cores_that_stand_still_are_a_key():
    """Idle tensor cores that are usually busy turn B2, also where the power is not low."""
    bank = IdleNodeBank(1, GPUS)
    run(bank, range(120), tensor=0.5)
    found = run(bank, range(120, 140), tensor=0.0, nic=0.0)
    assert first_held(found) == 5
    assert found[0].not_working[0]


def test_unmeasured_tensor_activity_is_no_key():
    """An exporter that writes zero for what it cannot read gives no evidence."""
    bank = IdleNodeBank(1, GPUS)
    assert first_held(run(bank, range(200), tensor=0.0)) is None


def test_a_hang_does_not_become_usual(working):
    """An hour into the hang the node is still quiet, since the same moment, and work ends it in 10 s."""
    found = run(working, range(120, 3720), **HANG)
    assert found[-1].held[0]
    assert found[-1].since[0] == 120.0
    back = run(working, range(3720, 3740))
    assert [bool(q.held[0]) for q in back] == [True] * 10 + [False] * 10


def test_a_job_that_ended_is_not_quiet(working):
    """GPUs idle in power and utilisation without a job's memory have nothing left to do."""
    ended = {"nic": 0.0, "watts": 75.0, "busy": 0.0, "memory": 0.01}
    assert first_held(run(working, range(120, 300), **ended)) is None


def test_a_hung_job_that_ends_is_quiet_no_more(working):
    """The process of a hung job dies: from the next sample on nothing is held."""
    run(working, range(120, 140), **HANG)
    assert not run(working, [140], nic=0.0, watts=75.0, busy=0.0, memory=0.0)[0].held[0]


def test_a_hang_of_idle_gpus_that_hold_memory_is_one(working):
    """Ranks blocked on the host leave their GPUs idle but full: without bytes that is quiet."""
    assert first_held(run(working, range(120, 200), nic=0.0, watts=75.0, busy=0.0)) == 30


def test_a_slow_start_is_not_learnt():
    """Ten idle minutes before training do not make idle power usual."""
    bank = IdleNodeBank(1, GPUS)
    run(bank, range(600), nic=0.0, watts=75.0, busy=0.0)
    assert first_held(run(bank, range(600, 660))) is None
    assert first_held(run(bank, range(660, 700), **HANG)) == 5


def test_a_node_without_traffic_has_no_bytes_to_miss():
    """A node with a trickle of traffic needs the power key, for its longer hold."""
    bank = IdleNodeBank(1, GPUS)
    run(bank, range(120), nic=1e5)
    assert first_held(run(bank, range(120, 200), **HANG)) == 30


def test_what_is_not_read_changes_nothing(working):
    """NaN keeps each key as it was, in work and in a hang, and GPUs not read are not counted."""
    nothing = {"nic": np.nan, "watts": np.nan, "busy": np.nan, "memory": np.nan}
    assert first_held(run(working, range(120, 180), **nothing)) is None
    run(working, range(180, 190), **HANG)
    assert all(q.held[0] for q in run(working, range(190, 200), **nothing))
    other = IdleNodeBank(1, GPUS)
    run(other, range(120))
    one_lost = {"nic": 0.0, "watts": np.array([250.0] * 3 + [np.nan])}
    assert first_held(run(other, range(120, 140), **one_lost)) == 5


def test_a_gap_is_no_hold(working):
    """Two quiet samples ten minutes apart prove nothing about the time between."""
    run(working, [120], **HANG)
    found = run(working, range(720, 730), **HANG)
    assert first_held(found) == 5
    assert found[-1].since[0] == 720.0


def test_idle_gpus_without_bytes_name_a_node_and_prove_nothing(working):
    """A node whose GPUs stand idle while nothing is sent is idle after 5 s, and held only after 30 s."""
    found = run(working, range(120, 155), nic=0.0, watts=80.0, busy=0.0)
    assert [q.idle[0] for q in found].index(True) == 5
    assert first_held(found) == 30
    assert not run(working, range(155, 166))[-1].idle[0]


def test_names_the_gpu_that_does_not_spin(working):
    """The GPU that is idle while the others spin is named."""
    found = run(
        working, [120], nic=0.0, watts=np.array([250.0, 250.0, 80.0, 250.0]), busy=np.array([1.0, 1, 0, 1])
    )
    assert found[0].spinning.tolist() == [[True, True, False, True]]


def test_shares_are_of_what_is_usual(working):
    """Bytes and power are shown against the node's own medians, NaN where nothing is usual."""
    shares = working.shares(NODE, reading(120, nic=1e7, watts=300.0))
    assert shares.ravel().tolist() == [0.01, 0.5]
    assert np.isnan(IdleNodeBank(1, GPUS).shares(NODE, reading(0))).all()


def test_a_bank_of_many_nodes_is_many_banks_of_one():
    """Fed together, in parts or alone, nodes at their own times are judged alike."""
    rng = np.random.default_rng(7)
    together, alone = IdleNodeBank(3, GPUS), [IdleNodeBank(1, GPUS) for _ in range(3)]
    for second in range(200):
        here = np.flatnonzero(rng.random(3) < 0.9)
        values = [HANG if node == 1 and second >= 150 else {} for node in here]
        parts = [reading(second + 0.3 * node, **v) for node, v in zip(here, values, strict=True)]
        if not parts:
            continue
        fields = NodeReading.__dataclass_fields__
        whole = NodeReading(**{name: np.concatenate([getattr(p, name) for p in parts]) for name in fields})
        found = together.update(here, whole)
        for i, (node, part) in enumerate(zip(here, parts, strict=True)):
            single = alone[node].update(NODE, part)
            assert single.held[0] == found.held[i]
            assert np.array_equal(single.since, found.since[i : i + 1], equal_nan=True)
    assert state(together)["._held"][0].tolist() == [False, True, False]


def test_a_reset_forgets_one_node():
    """After another job came, its node is judged by nothing it did before."""
    bank = IdleNodeBank(1, GPUS)
    run(bank, range(120))
    bank.reset(NODE)
    assert first_held(run(bank, range(120, 180), **HANG)) is None


def test_the_input_is_left_alone(working):
    """The bank neither writes to nor keeps the arrays it is given."""
    given = reading(120)
    kept = replace(given, power=given.power.copy())
    working.update(NODE, given)
    assert np.array_equal(given.power, kept.power)
