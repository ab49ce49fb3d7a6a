"""So many of so many nodes fall silent, with and without places: what is found, worked out case by case."""

import zlib

import pytest

from alerts.cases.lifecycle import NOTIFIED
from slowrank.telemetry import NodeSample
from streams.cluster.stage import FindingStage
from streams.node.inventory import NodeAnnouncer
from streams.node.liveness import Liveness
from streams.suspicions import Location

T0, SILENT_FROM, SECONDS = 1_795_160_000.0, 6, 50


def place_of(i, rack, switch):
    at = (f"r{i // rack}", f"s{i // switch}") if rack else (None, None)
    return Location("c", f"n{i:03d}", None, *at)


def announced(place):
    sample = NodeSample(schema=1, cluster="c", node=place.node, boot_id="b", seq=0, ts=T0)
    return NodeAnnouncer().update(sample, place)


def findings(nodes, silent, *, rack=0, switch=0, partitions=1):
    """The findings that are open in the end, each as (what, severity, action), and when the first was."""
    places = [place_of(i, rack, switch) for i in range(nodes)]
    # Each node has its own moment within the second.
    phases = [zlib.crc32(place.node.encode()) % 900 / 1000 for place in places]
    stages = [Liveness() for _ in range(partitions)]
    finding, last = FindingStage(), {}
    for s in (s for place in places for s in announced(place)):
        finding.process(s)
    for second in range(SECONDS):
        for i, place in enumerate(places):
            if i not in silent or second < SILENT_FROM:
                for s in stages[i % partitions].update(place, T0 + second + phases[i]):
                    finding.process(s)
        for s in (s for stage in stages for s in stage.tick(T0 + second + 1)):
            finding.process(s)
        for f in finding.tick(T0 + second + 1):
            last[f.id] = f
    opened = [f for f in last.values() if f.status in NOTIFIED]
    return sorted(said(f) for f in opened), min(f.detected_at for f in opened) - T0 - SILENT_FROM


def said(f):
    where = f.subject.rack or f.subject.switch or f.subject.cluster
    name = f.subject.node if f.subject.type == "node" else f"{f.subject.type} {where}"
    return name, f.kind, f.severity, f.action.code


def nodes(*numbers):
    return [(f"n{i:03d}", "exporter.stale", "warning", "WATCH") for i in numbers]


def place(*names):
    return [(name, "exporter.stale", "error", "CHECK_NETWORK") for name in names]


SITE = place("site c")
GAP = [("telemetry c", "self.telemetry_gap", "warning", "CHECK_NETWORK")]

# nodes, per rack, per switch, silent; with places, without
CASES = [
    # One node is a node, also where it is all of its cluster.
    (1, 1, 1, 1, nodes(0), nodes(0)),
    (2, 2, 2, 1, nodes(0), nodes(0)),
    (2, 1, 1, 1, nodes(0), nodes(0)),
    (2, 2, 2, 2, SITE, SITE),
    (4, 4, 32, 1, nodes(0), nodes(0)),
    # Half of a rack is no rack.
    (4, 4, 32, 2, nodes(0, 1), nodes(0, 1)),
    # All of a rack, and more nodes than fail by chance.
    (4, 2, 4, 2, place("rack r0"), nodes(0, 1)),
    # A rack that has all nodes is the site.
    (4, 4, 32, 3, SITE, GAP),
    (5, 4, 32, 3, place("rack r0"), GAP),
    (4, 2, 2, 3, SITE, GAP),
    (4, 4, 32, 4, SITE, SITE),
    (8, 4, 8, 1, nodes(0), nodes(0)),
    (8, 4, 8, 4, place("rack r0"), GAP),
    (8, 4, 8, 6, SITE, GAP),
    (9, 4, 8, 7, place("switch s0"), GAP),
    (8, 4, 4, 6, SITE, GAP),
    (8, 4, 8, 8, SITE, SITE),
    (40, 4, 32, 1, nodes(0), nodes(0)),
    (40, 4, 32, 8, place("rack r0", "rack r1"), nodes(*range(8))),
    (40, 4, 8, 8, place("switch s0"), nodes(*range(8))),
    (40, 4, 8, 20, place("rack r4", "switch s0", "switch s1"), GAP),
    # The switch of the issue: 32 of 40 nodes behind it, the other eight well.
    (40, 4, 32, 32, place("switch s0"), GAP),
    (40, 4, 8, 32, SITE, GAP),
    (40, 4, 32, 40, SITE, SITE),
    (200, 8, 32, 40, place("rack r4", "switch s0"), nodes(*range(40))),
    (200, 8, 32, 160, SITE, GAP),
    (200, 8, 32, 200, SITE, SITE),
]


@pytest.mark.parametrize(("count", "rack", "switch", "silent", "placed", "unplaced"), CASES)
def test_silence_is_named_after_its_place(count, rack, switch, silent, placed, unplaced):
    """More than a fifth at once are never less than the places that explain them, and all are the site."""
    assert findings(count, range(silent), rack=rack, switch=switch)[0] == placed
    assert findings(count, range(silent))[0] == unplaced


def test_nodes_of_all_places_are_the_telemetry():
    """Four in five nodes of every rack, and one in five well: no place explains that."""
    scattered = [i for i in range(40) if i % 5]
    assert findings(40, scattered, rack=5, switch=10)[0] == GAP


@pytest.mark.parametrize("partitions", [2, 3, 8])
def test_partitions_change_nothing(partitions):
    """Which worker a node is judged by is of no account."""
    for count, silent in ((40, 32), (40, 40), (4, 2)):
        per_switch = 32 if count == 40 else 2
        alone = findings(count, range(silent), rack=2, switch=per_switch)
        assert findings(count, range(silent), rack=2, switch=per_switch, partitions=partitions) == alone


def test_a_switch_opens_before_its_nodes_are_stale():
    """Six seconds after the last record; the site once a node is silent: until then it may be a pause."""
    assert findings(40, range(32), rack=4, switch=32)[1] <= 8
    assert findings(40, range(40), rack=4, switch=32)[1] <= 30
