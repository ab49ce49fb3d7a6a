"""When so many nodes fall silent together that it is the telemetry path."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alerts.config import FindingConfig
from streams.cluster.incidents.telemetry_outage import is_many, scale_of, together
from streams.cluster.inventory import Layout, Where

CONFIG = FindingConfig()
NODES, PER_RACK = 40, 4
RACKED = Layout({f"n{i:02}": Where(f"r{i // PER_RACK}", None, 1, 1000.0) for i in range(NODES)})


def silent(nodes, *, since=100.0, every=0.0):
    return {f"n{i:02}": since + every * k for k, i in enumerate(nodes)}


def numbers(nodes):
    return [int(node[1:]) for node in nodes]


@pytest.mark.parametrize(
    ("quiet", "nodes", "many"), [(2, 3, False), (3, 14, True), (3, 15, False), (8, 40, False), (9, 40, True)]
)
def test_more_than_a_fifth_and_at_least_three_are_many(quiet, nodes, many):
    """Two of three nodes may be at fault themselves, and so may a fifth of a large cluster."""
    assert is_many(quiet, nodes, CONFIG) == many


@pytest.mark.parametrize(
    ("nodes", "scale"),
    [
        (range(20), "domains"),
        (range(24), "site"),
        (range(0, 40, 2), "domains"),
        ([i for i in range(40) if i % 4 < 3 and i < 39], "telemetry"),
        ([i for i in range(40) if i not in (5, 9)], "site"),
        (range(40), "site"),
        ([*range(12), *range(12, 40, 2)], "telemetry"),
    ],
    ids=[
        "half",
        "six-racks",
        "half-everywhere",
        "of-all-racks",
        "nearly-all",
        "all",
        "three-racks-and-others",
    ],
)
def test_what_explains_so_many(nodes, scale):
    """Half may be racks; of more, the site if it is place by place, and the telemetry if it is everywhere."""
    assert scale_of(silent(nodes), RACKED) == scale


def test_one_dark_place_explains_most_of_a_cluster():
    """A switch with four fifths of the nodes is a switch, also with a node of another one beside it."""
    layout = Layout({f"n{i:02}": Where(f"r{i // 4}", f"s{i // 32}", 1, 1000.0) for i in range(NODES)})
    assert scale_of(silent(range(32)), layout) == "domains"
    assert scale_of(silent([*range(31), 36]), layout) == "domains"
    assert scale_of(silent(range(40)), layout) == "site"


@pytest.mark.parametrize(
    ("nodes", "named"),
    [
        (range(0, 40, 4), range(0, 40, 4)),
        (range(0, 32, 4), []),
        ([*range(0, 20, 4), *range(1, 20, 4)], sorted([*range(0, 20, 4), *range(1, 20, 4)])),
        ([i for i in range(20) if i % 4], []),
        (range(12), []),
        ([*range(4), *range(4, 40, 4)], range(4, 40, 4)),
        (range(24), range(24)),
    ],
    ids=["one-a-rack", "a-fifth", "half-a-rack", "three-in-four", "whole-racks", "beside-a-rack", "most"],
)
def test_dark_racks_are_no_outage_until_most_is_silent(nodes, named):
    """What a rack of which three in four are silent explains counts only beside half of the cluster."""
    assert numbers(together(silent(nodes), RACKED, CONFIG)) == list(named)


@pytest.mark.parametrize(("every", "named"), [(1.1, 10), (1.2, 9), (1.3, 0)])
def test_nodes_of_an_outage_fall_silent_within_ten_seconds(every, named):
    """Of ten of forty, one after the other, those count that lie so close, and nine are many."""
    assert len(together(silent(range(0, 40, 4), every=every), RACKED, CONFIG)) == named


@given(
    st.dictionaries(st.integers(0, NODES - 1), st.integers(0, 60), max_size=NODES), st.integers(-90, 10**6)
)
def test_when_it_was_and_in_what_order_it_is_told_does_not_matter(since, shift):
    """The same silence at another time, told in another order, has the same nodes."""
    told = {f"n{i:02}": float(at) for i, at in since.items()}
    later = {node: at + shift for node, at in reversed(told.items())}
    assert together(later, RACKED, CONFIG) == together(told, RACKED, CONFIG)
