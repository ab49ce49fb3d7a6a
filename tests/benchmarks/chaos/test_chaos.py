"""Disturbances in small; `python -m benchmarks chaos` is the whole."""

import pytest

from benchmarks.capacity.load import Load
from benchmarks.chaos import command
from benchmarks.chaos.recovery import Look, behind, recovered_after, worst
from benchmarks.chaos.story import faults, messages, record

SECONDS = 120


LOAD = Load(nodes=16, seconds=SECONDS, partitions=4, start=1_795_160_000.0, unit=8, faults=faults(SECONDS))


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    home = tmp_path_factory.mktemp("chaos")
    return home, record(LOAD, home / "load")


def test_a_story_has_what_can_be_lost(told):
    """A slow GPU and a flapping port in both jobs, GPUs that are lost, and rows of all tables."""
    home, story = told
    kinds = {doc["kind"] for doc in story.findings.values() if doc["status"] == "open"}
    assert {"straggler.fail_slow", "link.nic_flap", "xid.79"} <= kinds
    assert {table for table, *_ in story.rows} == {"samples_10s", "nic_10s", "host_10s", "steps_10s"}
    sent = list(messages(home / "load"))
    assert len(sent) == story.records
    assert [due for due, *_ in sent] == story.dues["detect"].tolist()
    assert len(story.dues["sink"]) == sum(topic != "node-events" for _, _, topic, _, _ in sent)


@pytest.mark.parametrize(
    ("looks", "after", "most"),
    [
        ([(0, 1.0), (9, 1.5), (12, 2.0), (15, 2.4)], 0.0, 2.4),
        ([(0, 1.0), (9, 1.5), (12, 9.0), (15, 2.4), (18, 12.0), (21, 2.0)], 11.0, 12.0),
        ([(0, 1.0), (9, 1.5), (12, 9.0), (15, 12.0)], 5.0, 12.0),
    ],
    ids=["as usual", "recovered", "never"],
)
def test_the_time_to_recover(looks, after, most):
    seen = [Look(float(at), late) for at, late in looks]
    assert (recovered_after(seen, 10.0), worst(seen, 10.0)) == (after, most)


def test_how_far_behind_is_the_age_of_the_first_record_that_is_not_processed(told):
    _, story = told
    dues = story.dues["sink"]
    assert behind(dues, 100, dues[100] + 7.0) == 7.0
    assert behind(dues, len(dues), SECONDS + 50.0) == 0.0


def test_what_differs_is_told():
    """Nothing, a finding too few, one too many and one that is not the same; a row that lost a record."""
    one = {"id": "a", "kind": "xid.79", "status": "open", "dedup_key": "k", "onset": 1.0}
    other = {**one, "onset": 2.0}
    assert command.differing_findings({"a": one}, {"a": one}) == []
    assert command.differing_findings({"a": one}, {}) == ["missing: xid.79 (open) k"]
    assert command.differing_findings({}, {"a": one}) == ["not expected: xid.79 (open) k"]
    assert command.differing_findings({"a": one}, {"a": other}) == [
        "differs: xid.79 (open) k: onset 2.0 instead of 1.0"
    ]
    row = ("host_10s", "n1", "", 10.0)
    assert command.differing_rows({row: 10}, {row: 10}) == []
    assert command.differing_rows({row: 10}, {row: 9}) == ["row host_10s n1  10.0: 9 records instead of 10"]
    assert command.differing_rows({row: 10}, {}) != []


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_workers_that_are_killed_change_nothing(tmp_path):
    """The whole way at real time, from the records to the webhooks (235 s)."""
    outcome = command.run(tmp_path, LOAD, "kill")
    assert outcome.wrong == []
    assert outcome.same
    assert outcome.recovered["detect"] > 0


def test_logs_of_an_earlier_run_are_kept(tmp_path, capsys):
    """The folder is refused, with what it holds."""
    (tmp_path / "kill").mkdir()
    with pytest.raises(SystemExit, match="2"):
        command.main(["--home", str(tmp_path), "--only", "none", "kill"])
    assert "holds the logs of an earlier run (kill): name another folder" in capsys.readouterr().err
