"""Domains: one cause for what its members show together, and silence about coincidences."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.node.fault_domains import Domain, DomainConfig, Suspect, explain

NODES, PER_RACK, PER_SWITCH = 128, 4, 32
T0 = 1_795_000_000.0


def cluster(names):
    """Return the racks, switches and the whole of 128 nodes, with the suspects in them."""
    names = set(names)
    shapes = (("rack", PER_RACK), ("switch", PER_SWITCH), ("cluster", NODES))
    return [
        Domain(
            kind, f"{kind}-{k}", frozenset(names & {f"n{i}" for i in range(k * size, (k + 1) * size)}), size
        )
        for kind, size in shapes
        for k in range(NODES // size)
    ]


def suspects(nodes, *, onset=0.0, spread=0.5, ratio=3.0):
    rng = random.Random(7)
    return [Suspect(f"n{i}", f"n{i}", ratio, T0 + onset + rng.uniform(0, spread)) for i in nodes]


def causes(found, **config):
    return [
        (e.domain.name, len(e.explained))
        for e in explain(found, cluster(s.name for s in found), DomainConfig(**config))
    ]


def test_a_whole_rack_is_the_rack_and_not_its_switch():
    """Four silent nodes of one rack are that rack's."""
    assert causes(suspects(range(8, 12))) == [("rack-2", 4)]


def test_a_switch_with_32_nodes_is_one_cause():
    """All nodes of a switch are explained by the switch, not by eight racks."""
    assert causes(suspects(range(32, 64))) == [("switch-1", 32)]


def test_a_switch_with_silent_members():
    """Five of 32 members without evidence do not hide the switch."""
    assert causes(suspects(range(32, 59))) == [("switch-1", 27)]


def test_few_of_many_members_are_coincidence():
    """Three nodes of 32 under a switch, in three racks, are no cause together."""
    assert causes(suspects([33, 40, 50])) == []


def test_onsets_apart_are_coincidence():
    """A rack whose nodes began 20 s apart is no link cause, but may be a thermal one."""
    apart = [Suspect(f"n{i}", f"n{i}", 3.0, T0 + 20 * i) for i in range(4)]
    assert causes(apart) == []
    assert causes(apart, width=120.0) == [("rack-0", 4)]


@pytest.mark.parametrize("count", range(2, 9))
def test_concurrent_faults_stay_apart(count):
    """Two to eight racks that fail, up to four of them in the same second, are as many causes."""
    racks = random.Random(count).sample(range(32), count)
    found = [
        s
        for k, r in enumerate(racks)
        for s in suspects(range(4 * r, 4 * r + 4), onset=5.0 * (k if count > 4 else 0))
    ]
    assert sorted(causes(found)) == sorted((f"rack-{r}", 4) for r in racks)


def test_rack_and_switch_at_once():
    """A switch and a rack under another switch are two causes, the larger first."""
    assert causes(suspects([*range(32), *range(64, 68)])) == [("switch-0", 32), ("rack-16", 4)]


def test_everything_at_once_is_the_cluster():
    """What all nodes show blames no rack and no switch."""
    assert causes(suspects(range(NODES))) == [("cluster-0", NODES)]


def test_two_switches_of_four_are_not_the_cluster():
    """Half of all nodes under two switches are two causes, although they fell silent together."""
    assert causes(suspects([*range(32), *range(64, 96)])) == [("switch-0", 32), ("switch-2", 32)]


def test_parts_of_one_machine_are_one_witness():
    """Eight ports of one node name no domain, however sure."""
    ports = [Suspect(f"n1/{p}", "n1", 6.0, T0) for p in range(8)]
    assert explain(ports, [Domain("switch", "s", frozenset(p.name for p in ports), 8)]) == []


def test_probabilities_share_out_what_rivals_explain_too():
    """Three of four nodes of a rack: the rack likeliest; all shares make one."""
    found = suspects(range(3))
    best = explain(found, cluster(s.name for s in found))[0]
    assert best.domain.name == "rack-0"
    assert best.probability > 0.99
    assert best.probability + math.fsum(p for _, p in best.others) == pytest.approx(1.0)


def test_order_of_suspects_does_not_matter():
    """Shuffled suspects and domains give the same explanations."""
    found = suspects([*range(32), *range(64, 68), *range(100, 104)], spread=1.0)
    domains = cluster(s.name for s in found)
    straight = explain(found, domains)
    for seed in range(5):
        rng = random.Random(seed)
        mixed = explain(rng.sample(found, len(found)), rng.sample(domains, len(domains)))
        assert [(e.domain, e.explained, e.gain) for e in mixed] == [
            (e.domain, e.explained, e.gain) for e in straight
        ]


def test_nothing_in_nothing_out():
    """No suspects, no causes."""
    assert explain([], cluster([])) == []


def test_hundreds_of_causes_at_once_are_distinguished():
    """Sixty racks that fail together, a fifth of all, are sixty causes, and soon found."""
    per, racks = 5, 300
    bad = suspects([n for rack in range(0, racks, 5) for n in range(rack * per, rack * per + per)])
    names = {s.name for s in bad}
    domains = [
        Domain("rack", f"r{k}", frozenset(names & {f"n{i}" for i in range(k * per, k * per + per)}), per)
        for k in range(racks)
    ]
    domains.append(Domain("cluster", "", frozenset(names), per * racks))
    assert {e.domain.name for e in explain(bad, domains)} == {f"r{k}" for k in range(0, racks, 5)}


def rack(size, onsets, ratio=0.0, **more):
    """What is found when so many members of one rack began at these times."""
    members = [Suspect(f"n{i}", f"n{i}", ratio, T0 + at) for i, at in enumerate(onsets)]
    return explain(members, [Domain("rack", "r", frozenset(s.name for s in members), size)], **more)


def test_gain_agrees_with_its_formula():
    """Evidence and steps in time speak for a domain; how many there are, and who is well, against it."""
    alone, one_of_32 = rack(4, [0, 0, 1], 3.0), rack(4, [0, 0, 1], 3.0, counts={"rack": 32})
    expected = 3 * 3.0 + 2 * math.log(600 / 2) - math.log(5)
    assert alone[0].gain == pytest.approx(expected)
    assert one_of_32[0].gain == pytest.approx(expected - math.log(32))


@pytest.mark.parametrize(
    ("size", "onsets", "found"),
    [(8, [0, 0, 0], 1), (9, [0, 0, 0], 0), (3, [0, 1, 2], 1), (3, [0, 1, 2.1], 0), (2, [0, 0], 0)],
    ids=["five-well", "six-well", "two-seconds", "longer", "two-machines"],
)
def test_limits_of_a_cause(size, onsets, found):
    """Three machines within two seconds, and odds of e³ after what its healthy members say against it."""
    assert len(rack(size, onsets)) == found


@given(st.lists(st.integers(0, 40), min_size=3, max_size=9), st.integers(-1000, 1000))
def test_causes_do_not_depend_on_when_it_was(onsets, shift):
    """The same onsets at another time have the same explanations."""
    found, later = rack(9, onsets, 4.0), rack(9, [at + shift for at in onsets], 4.0)
    assert [[s.name for s in e.explained] for e in found] == [[s.name for s in e.explained] for e in later]
