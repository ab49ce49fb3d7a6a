"""Nodes to evict together where no single one can be named."""

import pytest

from alerts.report.cost import ActionCosts
from alerts.report.eviction import eviction, in_words
from slowrank.telemetry import Subject
from slowrank.telemetry.records import Suspect


def suspect(node, probability, rank=0):
    subject = Subject(type="rank", cluster="c", node=node, rank=rank)
    return Suspect(subject=subject, probability=probability)


def chosen(*suspects, gpus=64):
    return eviction(
        [suspect(node, p, rank) for rank, (node, p) in enumerate(suspects)], gpus=gpus, costs=ActionCosts()
    )


@pytest.mark.parametrize(
    ("suspects", "nodes", "probability"),
    [
        ([(f"n{i}", 0.24) for i in range(4)], ("n0", "n1", "n2", "n3"), 0.96),
        ([("n0", 0.2), ("n1", 0.45), ("n1", 0.3)], ("n1", "n0"), 0.95),
        ([("n0", 0.9), ("n1", 0.1)], ("n0",), 0.9),
        ([(f"n{i}", 0.0625) for i in range(16)], ("n0", "n1", "n10", "n11", "n12", "n13", "n14", "n15"), 0.5),
        ([("n0", 0.3), ("n1", 0.3)], ("n0", "n1"), 0.6),
    ],
    ids=["a-group", "two-ranks-of-one-node", "one-stands-out", "half-of-sixteen", "all-there-are"],
)
def test_the_fewest_nodes_that_hold_the_culprit(suspects, nodes, probability):
    """Likeliest first until they hold it with 0.85, eight at most; ranks of one node count together."""
    found = chosen(*suspects)
    assert (found.nodes, found.probability) == (nodes, pytest.approx(probability))


@pytest.mark.parametrize(
    "suspects",
    [[], [(None, 0.9)], [(f"n{i:02}", 1 / 32) for i in range(32)]],
    ids=["none", "no-node", "too-many"],
)
def test_nothing_is_evicted_where_it_would_likelier_miss(suspects):
    """Without suspects or their nodes, and where eight nodes hold the culprit with less than a half."""
    assert chosen(*suspects) is None


def test_the_advice_states_what_it_costs():
    """A restart of 64 GPUs from the last checkpoint takes 20 minutes on the average."""
    several, one = chosen(*[(f"n{i}", 0.24) for i in range(4)]), chosen(("n0", 0.9))
    assert several.gpu_hours_to_restart == pytest.approx(21.3333, abs=1e-4)
    assert in_words(several) == (
        "If that shows nothing, evict these 4 together: n0, n1, n2, n3. One is bad with probability 0.96; "
        "a restart costs 21.3 GPU-h, and 3 healthy nodes wait for a test."
    )
    assert in_words(one) == (
        "If that shows nothing, evict n0: it is bad with probability 0.90; a restart costs 21.3 GPU-h."
    )
