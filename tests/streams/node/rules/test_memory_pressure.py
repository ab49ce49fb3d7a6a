"""Hosts that are short of memory, in samples alone."""

import pytest

from slowrank.telemetry import Suspicion
from streams.node.stage import NodeStage
from tests.streams.node.node_samples import HOST, node_sample

T0, TICK = 1_795_160_000.0, 10


def suspected(*waits):
    """What is said of the memory of a host that waits for it for such shares of the time, and when."""
    stage, said = NodeStage(), []
    for seq, wait in enumerate(waits):
        host = HOST | {"host.pressure.memory_some_ratio": wait}
        sample = node_sample(T0 + TICK * seq, gpus=[{"gpu.utilization_ratio": 0.98}], host=host, job="j")
        suspicions = [s for s in [*stage.process(sample), *stage.tick(sample.ts)] if isinstance(s, Suspicion)]
        said += [(s.state, s.ts - T0) for s in suspicions if s.kind == "host.memory_pressure"]
    return said


def test_a_host_that_waits_for_memory_is_suspected_until_it_waits_no_more():
    """Also where the pressure rises too slowly to be a change of level."""
    rising = [0.0] * 6 + [0.01 * k for k in range(20)]
    (raised, at), *updates, (cleared, _) = suspected(*rising, *[0.0] * 8)

    assert (raised, cleared) == ("raise", "clear")
    assert 160 + 30 <= at <= 160 + 30 + TICK
    assert {state for state, _ in updates} <= {"update"}


@pytest.mark.parametrize("wait", [0.02, None], ids=["a little", "not read"])
def test_no_pressure_is_no_suspicion(wait):
    assert suspected(*[wait] * 30) == []


def test_a_short_wait_is_no_suspicion():
    """As while a checkpoint is read."""
    assert suspected(*[0.0] * 6, *[0.5] * 3, *[0.0] * 20) == []
