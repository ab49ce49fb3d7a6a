"""What is said of nodes that stop sending, one by one."""

import random

import pytest

from alerts.kinds import UNHEARD_KIND
from streams.node.liveness import Liveness
from streams.silent_nodes import SilenceConfig
from streams.suspicions import Location

NODE = Location("c", "n1")


def spoken(times, ticks=()):
    """Return (kind, state, ts, onset) of all that is said when records and ticks come at these times."""
    silence, said = Liveness(), []
    for ts, is_tick in sorted([*((t, False) for t in times), *((t, True) for t in ticks)]):
        said += silence.tick(ts) if is_tick else silence.update(NODE, ts)
    return [(s.kind, s.state, s.ts, s.onset) for s in said]


GONE = [998.25, 999.25, 1000.25, 1001.25, *[1041.5 + k for k in range(5)]]
SAID = [
    (UNHEARD_KIND, "raise", 1007.0, 1001.25),
    ("exporter.stale", "raise", 1011.25, 1001.25),
    ("node.silent", "raise", 1031.25, 1001.25),
    (UNHEARD_KIND, "clear", 1042.0, 1001.25),
    ("exporter.stale", "clear", 1041.5, 1001.25),
    ("node.silent", "clear", 1041.5, 1001.25),
]


@pytest.mark.parametrize("rhythm", [1, 2, 7, 60, 1000])
def test_the_ticks_change_nothing_that_is_said(rhythm):
    """A node's silence follows from its records, whether time passed second by second or in one leap."""
    assert spoken(GONE, range(1000, 1042, rhythm)) == SAID


def test_the_job_of_a_node_is_told_that_it_is_unheard_of():
    """So that its hang is judged by the others; it says nothing for a hang nor against one."""
    silence, location = Liveness(), Location("c", "n1", job_id="j")
    said = [s for ts in GONE for s in (*silence.tick(ts), *silence.update(location, ts))]
    of_job = [s for s in said if s.kind == "hang.job"]
    assert [(s.state, s.subject.job_id, s.log_likelihood_ratio) for s in of_job] == [
        ("raise", "j", 0.0),
        ("clear", "j", 0.0),
    ]
    assert [(s.kind, s.state, s.ts, s.onset) for s in said if s not in of_job] == SAID


def test_a_silence_that_nobody_listened_to_does_not_count():
    """It counts from when the process is back; that of a node reported before goes on."""
    silence, gone = Liveness(), Location("c", "n2")
    for ts in (998.25, 999.25, 1000.25, 1001.25):
        silence.update(NODE, ts + 20.0)
        silence.update(gone, ts)
    assert {s.subject.node for s in silence.tick(1022.0)} == {"n2"}
    silence.resume(1100.0)
    assert [(s.kind, s.subject.node, s.ts) for s in silence.tick(1100.0)] == [("node.silent", "n2", 1031.25)]
    said = [(s.kind, s.state, s.ts, s.onset) for s in silence.tick(1111.0)]
    assert said == [(UNHEARD_KIND, "raise", 1105.0, 1100.0), ("exporter.stale", "raise", 1110.0, 1100.0)]
    said = [(s.kind, s.state, s.ts, s.onset) for s in silence.update(NODE, 1112.0)]
    assert said == [(UNHEARD_KIND, "clear", 1112.0, 1100.0), ("exporter.stale", "clear", 1112.0, 1100.0)]


def test_the_pause_of_a_process_is_no_measure_of_a_nodes_rate():
    """A node that is back is expected every second, as before, also where its spool drains."""
    silence = Liveness()
    for ts in (998.25, 999.25, 1000.25, 1001.25):
        silence.update(NODE, ts)
    silence.resume(1100.0)
    for ts in (1040.0, 1099.5, 1100.5, 1101.5):
        assert silence.update(NODE, ts) == []
    assert [(s.kind, s.ts) for s in silence.tick(1112.0)] == [
        (UNHEARD_KIND, 1107.0),
        ("exporter.stale", 1111.5),
    ]


def test_what_comes_late_is_no_sign_of_life():
    """Out of turn only a record newer than the last word ends a silence; an unknown node is not met by it."""
    silence = Liveness()
    assert silence.update_late(NODE, 1000.0) == []
    assert silence.known == 0
    for ts in (998.25, 999.25, 1000.25, 1001.25):
        silence.update(NODE, ts)
    assert [s.kind for s in silence.tick(1020.0)] == [UNHEARD_KIND, "exporter.stale"]
    assert silence.update_late(NODE, 1001.25) == silence.update_late(NODE, 999.0) == []
    assert [s.state for s in silence.update_late(NODE, 1021.0)] == ["clear", "clear"]


def test_other_nodes_change_nothing():
    """A node's silence is told the same alone and beside nodes that are silent too or not."""
    rng, silence, said = random.Random(4), Liveness(), []
    others = [(1000 + t + rng.random(), f"n{k}") for k in range(2, 9) for t in range(0, 46 if k % 2 else 5)]
    heard = [*((ts, "n1") for ts in GONE), *others]
    for ts, node in sorted([*heard, *((float(t), "") for t in range(1000, 1046))]):
        said += silence.update(Location("c", node), ts) if node else silence.tick(ts)
    assert [(s.kind, s.state, s.ts, s.onset) for s in said if s.subject.node == "n1"] == SAID


def test_a_node_that_reports_rarely_is_unheard_of_later():
    """Four reports must be missing, but never more than make it stale."""
    silence = Liveness(SilenceConfig(stale=60.0))
    for ts in (994.0, 997.0, 1000.0, 1003.0):
        silence.update(NODE, ts)
    assert [s for t in range(1003, 1015) for s in silence.tick(float(t))] == []
    assert [(s.kind, s.ts) for s in silence.tick(1015.0)] == [(UNHEARD_KIND, 1015.0)]


def test_what_was_said_of_a_node_that_left_is_taken_back_when_it_returns():
    """A machine under repair for an hour is heard again: its finding is over, however time passed."""
    times = [998.0, 999.0, 1000.0, 1001.0, 5000.0]
    assert spoken(times) == spoken(times, range(1000, 5000)) == spoken(times, [1300, 4000])
    assert [(kind, state) for kind, state, *_ in spoken(times)][4:] == [
        (UNHEARD_KIND, "clear"),
        ("exporter.stale", "clear"),
        ("node.silent", "clear"),
    ]


def test_a_node_back_after_days_is_a_new_one():
    """Its findings have expired by then, and it is forgotten."""
    times = [998.0, 999.0, 1000.0, 1001.0, 1001.0 + 3 * 86400]
    assert spoken(times) == spoken(times, range(1000, int(times[-1]), 7200))
    assert [state for _, state, *_ in spoken(times)] == ["raise", "raise", "raise", "update"]


def test_who_has_left_is_not_asked_of_any_more():
    """After ten minutes a node has no vote on its job any more: that may run elsewhere by then."""
    silence, location = Liveness(), Location("c", "n1", job_id="j")
    said = [s for ts in (998.0, 999.0, 1000.0, 1001.0) for s in silence.update(location, ts)]
    said += [s for ts in range(1002, 2000) for s in silence.tick(float(ts))]
    said += silence.update(location, 2000.0)
    votes = [(s.state, s.ts) for s in said if s.kind == "hang.job"]
    assert votes == [("raise", 1006.0), ("clear", 1601.0)]
    assert silence.known == 1


def test_short_pauses_say_nothing():
    """A few missed reports are no silence."""
    assert spoken([998.0, 999.0, 1000.0, 1001.0, 1005.5, 1006.5], range(1000, 1008)) == []


@pytest.mark.slow
def test_nodes_that_never_come_back_are_forgotten():
    """A hundred names a minute for an hour leave ten minutes of them behind."""
    silence = Liveness()
    for minute in range(60):
        for i in range(100):
            silence.update(Location("c", f"n{minute}-{i}"), 60.0 * minute)
        silence.tick(60.0 * minute)
    assert silence.known == 11 * 100


def test_a_node_with_a_slow_tick_may_lose_a_report():
    """At one record every ten seconds two lost ones are no silence, and four are."""
    silence = Liveness()
    for ts in (980.0, 990.0, 1000.0, 1010.0, 1020.0, 1050.0, 1060.0):
        assert silence.update(NODE, ts) == []
        assert silence.tick(ts) == []
    found = [(s.kind, s.ts) for t in range(1061, 1150) for s in silence.tick(float(t))]
    assert found == [(UNHEARD_KIND, 1100.0), ("exporter.stale", 1100.0), ("node.silent", 1140.0)]


@pytest.mark.parametrize("moments", [(0.0, 0.7), (0.0, 7.0), (0.0, 0.7, 3.0)])
def test_a_node_with_several_exporters_is_not_silent_between_their_reports(moments):
    """Each is scraped every 15 s, at its own moment; a missed round of all of them is no silence either."""
    times = [1000.0 + 15 * k + m for k in range(40) if k != 30 for m in moments]
    said = spoken(times, range(1000, int(times[-1])))
    assert [ts for _, state, ts, _ in said if state == "raise"] == []


def test_how_often_a_new_node_reports_is_not_known():
    """How often one sends is not known from one record: it may be every five minutes, as clouds do."""
    assert spoken([1000.0, 1300.5], range(1000, 1301)) == []
    assert [(kind, state, ts) for kind, state, ts, _ in spoken([1000.0], range(1000, 1600))] == [
        (UNHEARD_KIND, "raise", 1375.0),
        ("exporter.stale", "raise", 1375.0),
        ("exporter.stale", "update", 1375.0),
    ]


@pytest.mark.parametrize("interval", [60.0, 120.0, 300.0])
def test_a_node_that_reports_once_in_minutes_is_not_silent(interval):
    """What counts as late depends on its own rate."""
    times = [1000.0 + interval * i for i in range(12)]
    assert spoken(times, range(1000, int(times[-1]))) == []


def test_five_minutes_without_a_record_need_no_second_witness():
    """From then on the exporter's silence is believed by itself, once."""
    silence = Liveness()
    for ts in (998.25, 999.25, 1000.25, 1001.25):
        silence.update(NODE, ts)
    said = [s for t in range(1002, 1500) for s in silence.tick(float(t))]
    assert [(s.kind, s.state, s.ts, s.log_likelihood_ratio) for s in said if s.overwhelming] == [
        ("exporter.stale", "update", 1301.25, 3.0)
    ]
    assert {s.log_likelihood_ratio for s in said if not s.overwhelming} == {1.0}
