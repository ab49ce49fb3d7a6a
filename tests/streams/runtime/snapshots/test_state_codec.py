import contextlib
import gc
import itertools
import os
import pickle
import random
from dataclasses import replace
from types import FunctionType, ModuleType

import numpy as np
import pytest

from streams.cluster.incidents.fold import INCIDENTS
from streams.cluster.timeline import SCOPE
from streams.node.rules.counter_rules import NIC_COUNTS, CountRule
from streams.node.rules.state_rules import GPU_STATES
from streams.open_suspicions import OpenSuspicions
from streams.runtime.snapshots.state_codec import BadState, dumps, loads
from tests.streams.test_stage_contract import STAGES, run


class Evil:
    """What a forged snapshot would hold."""

    def __init__(self, *call):
        self._call = call

    def __reduce__(self):
        return self._call


def test_arrays_and_containers_come_back():
    """Parts that are shared stay shared."""
    shared = np.arange(4.0)
    state = loads(dumps({"a": shared, "b": [shared, {1, 2}, frozenset({"x"})], "c": np.float32(1.5)}))
    assert state["a"] is state["b"][0]
    assert state["a"].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert state["b"][1:] == [{1, 2}, frozenset({"x"})]
    assert state["c"] == np.float32(1.5)


def test_rules_are_the_rules_of_this_process():
    """Their tests are code, and code is no part of a snapshot."""
    assert loads(dumps([NIC_COUNTS[0], GPU_STATES[3]])) == [NIC_COUNTS[0], GPU_STATES[3]]
    assert loads(dumps(GPU_STATES[3])) is GPU_STATES[3]


def test_a_rule_outside_of_the_tables_cannot_be_saved():
    """Another process would not have it."""
    rule = NIC_COUNTS[0]
    other = CountRule(rule.metric, 1.0, 1.0, rule.symptom, "none")
    with pytest.raises(BadState, match="outside of the tables"):
        dumps(other)


def test_the_functions_of_timelines_are_those_of_this_process():
    """Of the two tables; of no other."""
    assert all(loads(dumps(fold)) is fold for fold in (SCOPE, INCIDENTS))
    with pytest.raises(BadState, match="outside of the table"):
        dumps(replace(SCOPE))


def test_a_lambda_cannot_be_saved():
    """Neither can any other function that is not listed."""
    with pytest.raises(BadState, match="cannot be saved"):
        dumps(OpenSuspicions(1.0, lambda _, s: s))


@pytest.mark.parametrize(
    "call",
    [
        (os.system, ("true",)),
        (eval, ("1",)),
        (getattr, (np.zeros(1), "tofile")),
        (np.load, ("/etc/passwd",)),
        (pickle.loads, (b"",)),
    ],
    ids=lambda call: call[0].__name__,
)
def test_nothing_else_is_called(call):
    """A pickle that names a function is refused before the function is looked up."""
    with pytest.raises(BadState, match="no part of a state"):
        loads(pickle.dumps(Evil(*call)))


@pytest.mark.parametrize(
    "name",
    [
        b"streams.runtime.housekeeping\nend_process",
        b"streams.runtime.kafka.producer\nDurableProducer",
        # A module's imports are reachable by its name.
        b"streams.open_suspicions\nmsgspec",
        b"detectors.changepoint.detector\nnp",
        b"streams.suspicions\nClaim.suspicion",
        b"streams.columns\nread",
        b"slowrank.settings\nSettings",
    ],
)
def test_of_our_own_only_classes_of_states_are_taken(name):
    """No function, no import, no class that does input or output."""
    with pytest.raises(BadState):
        loads(b"\x80\x02c" + name + b"\n.")


def test_a_method_is_one_of_a_state():
    """And never one that starts with an underscore."""
    held: OpenSuspicions[str] = OpenSuspicions(30.0)
    assert loads(dumps(held.is_due)).__self__.update_seconds == 30.0
    for owner, name in ((held, "__init__"), ([], "append")):
        from streams.runtime.snapshots import state_codec

        with pytest.raises(BadState, match="no method of a state"):
            loads(pickle.dumps(Evil(state_codec._method, (owner, name))))


@pytest.mark.parametrize("seed", range(40))
def test_damaged_bytes_are_refused_and_never_more(seed):
    """Whatever a flipped byte makes of a pickle, the worker goes on."""
    chance, data = random.Random(seed), bytearray(dumps({"a": np.arange(3.0), "b": OpenSuspicions(1.0)}))
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    with contextlib.suppress(BadState):
        loads(bytes(data))


class Saved:
    """A stage that is saved and loaded before some of its records."""

    def __init__(self, stage, chance):
        self._stage, self._chance = stage, chance

    def process(self, record):
        if self._chance.random() < 0.02:
            self._stage = loads(dumps(self._stage))
        return self._stage.process(record)

    def tick(self, event_time):
        return self._stage.tick(event_time)


def arrays_of(root):
    """All arrays that can be reached from an object, without classes, functions and modules."""
    seen, left, found = {id(root)}, [root], []
    while left:
        for part in gc.get_referents(left.pop()):
            if id(part) in seen or isinstance(part, type | FunctionType | ModuleType):
                continue
            seen.add(id(part))
            left.append(part)
            if isinstance(part, np.ndarray):
                found.append(part)
    return found


@pytest.mark.parametrize("name", ["node", "job"])
def test_no_two_arrays_of_a_state_share_memory(name):
    """After loading they would be two: what is written to one would be missing in the other."""
    make, records = STAGES[name]
    stage = make()
    run(stage, records())
    arrays = [a for a in arrays_of(stage) if a.size and a.flags.writeable]
    assert len(arrays) > 20
    shared = [(a.shape, b.shape) for a, b in itertools.combinations(arrays, 2) if np.may_share_memory(a, b)]
    assert shared == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["node", "job"])
def test_a_stage_goes_on_as_if_it_had_not_been_saved(name):
    """All that later outputs depend on is in the bytes."""
    make, records = STAGES[name]
    taken = records()
    assert run(Saved(make(), random.Random(4)), taken) == run(make(), taken)
