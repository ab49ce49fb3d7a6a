"""Telemetry that fails: one event a rack, one row a class."""

from dataclasses import replace

from benchmarks.quality.run import OURS, Outcome
from benchmarks.quality.scenarios.scenario import events_of
from benchmarks.quality.scenarios.telemetry import LASTING, PASSING, RACK, RACKS, telemetry
from benchmarks.quality.scoring.telemetry_table import telemetry_rows
from simulator.cluster.truth import truths
from tests.benchmarks.quality.alarm_rows import alarm, event

GAP = event(gpu=None, machine=False, row="dead exporter", fault="exporter_gap", verdicts=("exporter.stale",))
TWICE = replace(GAP, row="records twice", fault="duplicate_batch", nodes=("b",), job_id="other", verdicts=())


def rows(*alarms):
    outcome = Outcome(
        part="telemetry", row="telemetry", seed=1, nodes=2, seconds=200.0, tick_seconds=1.0, rank_steps=1000,
        events=(GAP, TWICE), alarms={OURS: alarms}, expected={}, job_of={"a": "job", "b": "other"},
    )  # fmt: skip
    return {row[0]: row[1:] for row in telemetry_rows([outcome])}


def test_a_rack_is_one_event_and_every_class_has_one():
    """All nodes of a rack that falls silent are one cause, in a job of its own."""
    [scenario] = telemetry(5)
    events = events_of(scenario, truths(scenario.spec, scenario.faults))
    assert [e.row for e in events] == [*PASSING, *LASTING, *RACKS]
    assert len({e.job_id for e in events}) == len(events)
    for whole in events[-len(RACKS) :]:
        at = [int(node.rpartition("-")[2]) for node in whole.nodes]
        assert (len(at), at[0] % RACK) == (RACK, 0)
        assert whole.causes[0] == "domain"


def test_alarms_about_each_class():
    """A gap that is reported, and a rank called slow beside records that only come twice."""
    table = rows(
        alarm(gpu=None, kind="exporter.stale", job_id=None, sent_at=111.0), alarm(node="b", job_id="other")
    )
    one = "1.000 [1.000, 1.000]"
    assert table["dead exporter"] == ("1", one, one, "11.0 [11.0, 11.0], 11.0 [11.0, 11.0]", "0", "0")
    assert table["records twice"] == ("1", "-", "0.000 [0.000, 0.000]", "-, -", "1", "1")


def test_a_job_called_slow_for_a_gap_is_in_vain():
    """What is wrong with one exporter excuses no alarm about its job."""
    table = rows(alarm(node=None, kind="straggler.job_wide"))
    assert table["dead exporter"][1:3] == ("0.000 [0.000, 0.000]", "0.000 [0.000, 0.000]")
    assert table["dead exporter"][-2:] == ("1", "1")
