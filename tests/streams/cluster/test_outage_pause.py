"""A pause of all records of a cluster (an exporter roll-out, a machine that wakes up) is no lost site."""

import pytest

from alerts.cases.lifecycle import NOTIFIED
from alerts.finding import Finding
from streams.cluster.stage import FindingStage
from streams.node.liveness import Liveness
from tests.streams.cluster.test_outage_matrix import announced, place_of

T0, SECONDS = 1_795_160_000, 120


def versions(count, quiet, *, rack=0):
    """Every version that is shown of so many nodes; ``quiet(i, second)``: node ``i`` sends nothing."""
    places = [place_of(i, rack, rack) for i in range(count)]
    silence, stage, shown = Liveness(), FindingStage(), list[Finding]()
    for s in (s for place in places for s in announced(place)):
        stage.process(s)
    for second in range(SECONDS):
        heard = (
            s
            for i, place in enumerate(places)
            if not quiet(i, second)
            for s in silence.update(place, T0 + second + i / (count + 1))
        )
        for s in (*heard, *silence.tick(T0 + second + 1)):
            stage.process(s)
        shown += stage.tick(T0 + second + 1)
    return shown


def opened(found):
    """Type and severity of what was ever open, in order of when it was."""
    first = {f.id: f for f in reversed(found) if f.status in NOTIFIED}
    kept = sorted(first.values(), key=lambda f: f.detected_at)
    return [(f.subject.type, f.severity) for f in kept]


def between(*spans):
    return lambda _, second: any(first <= second < first + lasts for first, lasts in spans)


@pytest.mark.parametrize("rack", [0, 2])
@pytest.mark.parametrize("lasts", [8, 12, 28])
def test_a_pause_of_all_nodes_is_no_error(lasts, rack):
    """Whoever is back before a node would be silent (30 s) was not lost; nor was one that pauses again."""
    assert opened(versions(4, between((10, lasts)), rack=rack)) == []
    assert opened(versions(4, between((10, 12), (27, 14)), rack=rack)) == []


@pytest.mark.parametrize("lasts", [12, 60])
def test_the_only_node_is_no_site(lasts):
    """A cluster of one node has that node's own warning, however long it is away."""
    assert opened(versions(1, between((10, lasts)))) == [("node", "warning")]


def test_a_site_that_stays_silent_is_one_error():
    """After 30 s without a record it is one finding, and the only one."""
    found = versions(4, between((10, SECONDS)))
    assert opened(found) == [("site", "error")]
    assert 29 <= min(f.detected_at for f in found if f.status == "open") - (T0 + 10) <= 31


def test_nodes_that_do_not_come_back_after_a_pause_are_findings():
    """One of four has a warning of its own; half of forty, of no place, are the telemetry."""
    one = versions(4, lambda i, second: 10 <= second < 22 or (second >= 10 and i == 3))
    assert opened(one) == [("node", "warning")]
    half = versions(40, lambda i, second: 10 <= second < 22 or (second >= 10 and i % 2 == 0))
    assert opened(half) == [("telemetry", "warning")]
