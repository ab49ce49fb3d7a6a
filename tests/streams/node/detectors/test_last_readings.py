"""PCIe links, which an exporter reads in every fifth sample and not of all GPUs in the same one."""

import pytest

from slowrank.telemetry import Suspicion
from streams.node.stage import NodeStage
from tests.streams.node.node_samples import HOST, node_sample

T0, ONSET, GPUS, SLOW_EVERY = 1_795_160_000.0, 60, 4, 5
LINK = {"gpu.pcie.link_gen": 5, "gpu.pcie.link_width": 16, "gpu.pcie.link_width_max": 16}


def suspected(change, *, until=300, last_read=300, link=LINK):
    """Return the rules that suspect the third GPU, whose link becomes so at the onset, and the seconds until
    then and until each is cleared; links are read up to ``last_read``."""
    stage, found = NodeStage(), list[tuple[str, str, float]]()
    for t in range(until):
        gpus = []
        for gpu in range(GPUS):
            read = link | (change if gpu == 2 and t >= ONSET else {})
            due = (t + gpu) % SLOW_EVERY == 0 and t < last_read
            gpus.append({"gpu.utilization_ratio": 0.98} | (read if due else {}))
        for s in stage.process(node_sample(T0 + t, gpus=gpus, host=HOST)):
            if isinstance(s, Suspicion) and s.state != "update" and s.subject.gpu_index == 2:
                found.append((s.rule_id, s.state, s.ts - T0 - ONSET))
    return found


@pytest.mark.parametrize(
    ("change", "rule"),
    [({"gpu.pcie.link_width": 8}, "state.pcie_width"), ({"gpu.pcie.link_gen": 3}, "state.pcie_generation")],
)
def test_a_link_is_as_last_read(change, rule):
    """It is down-trained for as long as no reading says otherwise, and compared with links read at other
    times."""
    [(named, state, after)] = suspected(change)
    assert (named, state) == (rule, "raise")
    assert 30.0 <= after <= 30.0 + SLOW_EVERY


def test_a_link_that_is_not_read_any_more_is_not_known_to_be_slow():
    """A minute after the last reading, and what clears a rule."""
    (_, raised, _), (_, cleared, after) = suspected({"gpu.pcie.link_width": 8}, last_read=120)
    assert (raised, cleared) == ("raise", "clear")
    assert after == pytest.approx(60.0 + 60.0 + 30.0, abs=SLOW_EVERY)


NO_MAXIMUM = {"gpu.pcie.link_gen": 5, "gpu.pcie.link_width": 16}


def test_where_no_maximum_is_read_a_link_is_compared_with_its_own_past():
    """Collectors often send the width alone; lanes that a GPU has had it still should have."""
    [(named, state, after)] = suspected({"gpu.pcie.link_width": 8}, link=NO_MAXIMUM)
    assert (named, state) == ("state.pcie_width", "raise")
    assert 30.0 <= after <= 30.0 + SLOW_EVERY


def test_a_link_that_was_never_wider_is_as_it_should_be():
    """Slots of half the lanes are usual; what other GPUs of the node have is no measure."""
    assert suspected({"gpu.pcie.link_width": 16}, link=NO_MAXIMUM | {"gpu.pcie.link_width": 8}) == []
