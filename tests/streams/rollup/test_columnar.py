"""Samples folded as columns give the rows that folding one by one gives, in the same order, bit for bit."""

import itertools

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from benchmarks.speed.plain_rollup import PlainRollUp
from slowrank.telemetry import NodeSample
from slowrank.telemetry.columns import pack
from slowrank.telemetry.schema import SAMPLE_SCHEMAS
from streams.rollup.rollup import MOST_WAITING, RollUp
from tests.roll_ups import unpacked

DEVICES = (("0", "1"), ("0", "1", "2"), ("2", "0"), ("1",), ())
PORTS = (("mlx5_0/1",), ("mlx5_1/1", "mlx5_0/1"), ())
ODD = (None, 0, 5, 2**40, 9223372036854775794, -3)


def block(layout, count, chance):
    """Rows with all a column can hold: nothing, zero, tiny, huge, infinite, and counters that go back."""

    def value(column):
        if chance.random() < 0.15:
            return None
        if column.dtype.startswith("<f"):
            return float(chance.choice([0.0, -0.0, 1e-30, 0.1, 400.5, 3e9, np.inf, chance.random()]))
        odd: int | None = int(chance.integers(0, 1000))
        if column.name.endswith("_total") and chance.random() < 0.2:
            odd = ODD[chance.integers(len(ODD))]
        limit = {"<i2": 2**15, "<i4": 2**31, "<i8": 2**63}[column.dtype]
        return odd if odd is None or -limit < odd < limit else None

    return pack(layout, [{c.name: value(c) for c in layout.columns} for _ in range(count)])


def sample(node, ts, seq, chance, *, messy):
    """One sample of a node; ``messy``: its devices, its schema and its host come and go."""
    odd = messy and chance.random() < 0.2
    schema = SAMPLE_SCHEMAS[int(chance.choice(list(SAMPLE_SCHEMAS))) if odd else max(SAMPLE_SCHEMAS)]
    gpus = DEVICES[chance.integers(len(DEVICES))] if odd else DEVICES[node % 2]
    ports = PORTS[chance.integers(len(PORTS))] if odd else PORTS[0]
    return NodeSample(
        schema=schema.id,
        cluster="c",
        node=f"n{node}",
        boot_id="b",
        seq=seq,
        ts=ts,
        gpu_ids=gpus,
        nic_ids=ports,
        gpu=block(schema.gpu, len(gpus), chance),
        nic=block(schema.nic, len(ports), chance),
        host=b"" if odd and chance.random() < 0.5 else block(schema.host, 1, chance),
        job_id="j" if chance.random() < 0.5 else "",
        labels={"rack": "r1"} if chance.random() < 0.5 else {},
    )


def stream(seed, *, nodes, seconds, messy):
    """Records and ticks of event time: late, repeated and missing samples, gaps, nodes that fall silent."""
    chance = np.random.default_rng(seed)
    steps: list[NodeSample | float] = []
    silent = chance.random(nodes) < (0.3 if messy else 0.0)
    for second, node in itertools.product(range(seconds), range(nodes)):
        if node == 0 and chance.random() < 0.3:
            steps.append(1000.0 + second)
        if silent[node] and second > seconds // 2:
            continue
        ts = 1000.0 + second + 0.01 * node
        if messy and chance.random() < 0.1:
            ts -= float(chance.choice([0.0, 1.0, 12.0, 40.0, 400.0]))
        steps.append(sample(node, ts, second, chance, messy=messy))
        if messy and chance.random() < 0.1:
            steps.append(steps[chance.integers(len(steps))])
    return [*steps, 1000.0 + seconds + 31.0, 1000.0 + seconds + 400.0]


def rolled(rollup, steps, flush_at=()):
    """The rows of each step, as text: NaN equals itself, and 0.0 differs from -0.0."""
    found = []
    for n, step in enumerate(steps):
        rows = rollup.tick(step) if isinstance(step, float) else rollup.add(step)
        found.append(list(map(repr, unpacked(rows))))
        if n in flush_at:
            found.append(list(map(repr, unpacked(rollup.flush()))))
    return [*found, list(map(repr, unpacked(rollup.flush())))]


@pytest.mark.slow
@settings(max_examples=12, phases=(Phase.generate,))
@given(
    seed=st.integers(0, 10**6),
    nodes=st.integers(1, 6),
    messy=st.booleans(),
    most=st.sampled_from([1, 4, 16, 64, 512]),
    flushes=st.lists(st.integers(0, 200), max_size=3),
)
def test_columns_give_the_rows_of_folding_one_by_one(seed, nodes, messy, most, flushes):
    """Whatever comes and however many samples wait, each step gives the same rows."""
    steps = stream(seed, nodes=nodes, seconds=35, messy=messy)
    assert rolled(RollUp(most_waiting=most), steps, flushes) == rolled(PlainRollUp(), steps, flushes)


def test_most_samples_of_a_calm_partition_are_folded_together(monkeypatch):
    """One by one is the way of nodes whose devices change and of late samples alone."""
    folded: list[int] = []
    monkeypatch.setattr("streams.rollup.samples.NodeBuckets.fold", lambda *_: folded.append(1))
    rollup = RollUp()
    for step in stream(1, nodes=4, seconds=30, messy=False):
        assert rollup.add(step) or True if isinstance(step, NodeSample) else rollup.tick(step) or True
    assert folded == []


@pytest.mark.slow
def test_what_waits_is_bounded():
    """A node whose clock stands still, so that no bucket ever closes, keeps a bounded number of samples."""
    rollup, chance = RollUp(), np.random.default_rng(1)
    for n in range(MOST_WAITING + 10):
        rollup.add(sample(0, 1000.0 + n * 1e-3, n, chance, messy=False))
    assert len(rollup._samples) == 10
