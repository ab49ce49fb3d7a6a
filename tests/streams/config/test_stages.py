"""The pipeline under a tuning: off says nothing, shadow is recorded and moves nothing, settings hold."""

from dataclasses import replace
from typing import Any

import pytest

from slowrank.telemetry import LoadedMinute, NodeEvent, Suspicion
from streams.config.settings import Tuning
from streams.config.stages import job_stage, node_stage
from streams.config.toml_file import tuning_of
from streams.files.replay import final_versions, findings_of
from streams.node.loaded_minutes import LoadedMinutes
from streams.pipeline import local_pipeline
from tests.streams import traffic

T0 = 1_795_160_000.0


@pytest.fixture(scope="module")
def records():
    """A job with a rank 1.5 times as slow, another with one 1.04 times as slow, and an XID."""
    event = NodeEvent(
        cluster="c", node="n9", ts=T0 - 100, source="kmsg", code="xid.79", subject={"gpu_index": 1}
    )
    one = traffic.job(slow=(5, 90, 1.5), ends=T0, steps=150)
    two = traffic.job(job_id="rl-1", slow=(3, 60, 1.04), seed=3, ends=T0, steps=150)
    return sorted([*one, *two, event], key=lambda r: r.ts)


def findings(records, tables):
    """(kind, job, whether in shadow) of what opens."""
    pipeline = local_pipeline(tuning_of(tables, file="f"))
    found = final_versions(findings_of(records, pipeline))
    assert not pipeline.set_aside
    return {(f.kind, f.subject.job_id, f.shadow) for f in found}


SLOW, OTHER, XID = "straggler.fail_slow", ("straggler.fail_slow", "rl-1", False), ("xid.79", None, False)


def test_untuned_it_finds_all_three(records):
    """The cases below take away from these."""
    assert findings(records, {}) == {(SLOW, "job-1", False), OTHER, XID}


def test_off_for_some_jobs(records):
    """Others are judged as before."""
    off = {"jobs": {"job-*": {"detectors": {"peer_step": {"mode": "off"}}}}}
    assert findings(records, off) == {OTHER, XID}


def test_a_setting_for_one_job(records):
    """A slowdown below its smallest is not reported there."""
    coarse = {"jobs": {"rl-1": {"detectors": {"peer_step": {"min_effect": 0.1}}}}}
    assert findings(records, coarse) == {(SLOW, "job-1", False), XID}


def test_shadow_finds_the_same_and_marks_it(records):
    """Under an id and a key of its own."""
    shadow = {"detectors": {"peer_step": {"mode": "shadow"}}}
    assert findings(records, shadow) == {(SLOW, "job-1", True), (SLOW, "rl-1", True), XID}
    plain, marked = (
        final_versions(findings_of(records, local_pipeline(tuning_of(t, file="f")))) for t in ({}, shadow)
    )
    ids = {f.id for f in plain if f.kind == SLOW}
    assert ids.isdisjoint(f.id for f in marked)
    assert {f.dedup_key for f in marked if f.shadow} == {
        f"{f.dedup_key}/shadow" for f in plain if f.id in ids
    }


@pytest.mark.slow
def test_off_and_shadow_leave_what_others_find_untouched(records):
    """Every other finding is the same to the last byte, but for the tuning it names."""
    plain = {f.id: f for f in final_versions(findings_of(records, local_pipeline()))}
    for mode in ("off", "shadow"):
        tuning = tuning_of({"jobs": {"rl-*": {"detectors": {"peer_step": {"mode": mode}}}}}, file="f")
        tuned = [f for f in final_versions(findings_of(records, local_pipeline(tuning))) if not f.shadow]
        kept = [f for f in plain.values() if f.subject.job_id != "rl-1"]
        [mark] = {f.config_hash for f in tuned}
        assert mark not in {f.config_hash for f in kept}
        assert tuned == [replace(f, config_hash=mark) for f in kept]


def test_clusters_with_equal_settings_share_a_stage():
    """What costs memory and time is a setting that differs, not a cluster."""
    tuning = tuning_of({"clusters": {"b": {"detectors": {"silence": {"stale": 20}}}}}, file="f")
    stage = node_stage(tuning)
    for cluster in ("a", "b", "c"):
        for record in traffic.nodes(count=1, seconds=2, cluster=cluster):
            stage.process(record)
    assert len(stage._stages) == 2  # type: ignore[attr-defined]  # what is shared shows only inside


def test_records_of_other_topics_give_rise_to_nothing():
    """A job stage says nothing about samples."""
    stage = job_stage(Tuning())
    assert list(stage.process(next(traffic.nodes(count=1, seconds=1)))) == []
    assert list(stage.tick(T0)) == []


LEVELS = "change."


def said(records, tables):
    """What the node stage says of its samples, by whether it is about changed levels."""
    stage = node_stage(tuning_of(tables, file="f"))
    found: list[Any] = []
    for record in records:
        found += stage.process(record)
        found += stage.tick(record.ts)
    return [s for s in found if isinstance(s, Suspicion) and s.detector.startswith(LEVELS)], found


def test_level_changes_that_are_off_are_not_looked_for(monkeypatch):
    """In no job and by no rule of it: then the cluster's nodes are spared the cost; the rest is the same."""
    records = list(traffic.nodes(count=2, seconds=160, low_clock=(1, 2, 100), ends=T0))
    off = {"detectors": {"level_changes": {"mode": "off"}}}
    levels, everything = said(records, {})
    assert levels
    monkeypatch.setattr("streams.node.detectors.level_changes.LevelChanges", None)
    assert said(records, off) == ([], [s for s in everything if s not in levels])


@pytest.mark.parametrize(
    ("tables", "minutes"),
    [
        ({}, 3),
        ({"detectors": {"node_clocks": {"mode": "off"}}}, 0),
        ({"clusters": {"c": {"detectors": {"node_clocks": {"mode": "off"}}}}}, 0),
        ({"detectors": {"node_clocks": {"mode": "shadow"}}}, 3),
    ],
)
def test_clocks_under_load_that_nobody_compares_are_not_read(tables, minutes, monkeypatch):
    """Where the comparison is off, samples are spared the reading."""
    read: list[None] = []
    take = LoadedMinutes.take
    monkeypatch.setattr(LoadedMinutes, "take", lambda self, samples: read.append(take(self, samples)))
    _, everything = said(traffic.nodes(count=1, seconds=200, ends=T0), tables)
    assert sum(isinstance(output, LoadedMinute) for output in everything) == minutes
    assert bool(read) == bool(minutes)


@pytest.mark.parametrize(
    "exception",
    [
        {"jobs": {"j": {"detectors": {"level_changes": {"mode": "shadow"}}}}},
        {"clusters": {"c": {"detectors": {"change.gpu.clock.sm_hz": {"mode": "on"}}}}},
        {"clusters": {"c": {"detectors": {"level_changes": {"mode": "on"}}}}},
    ],
)
def test_an_exception_keeps_a_detector_at_work(exception):
    """Somebody will hear of it."""
    off = {"detectors": {"level_changes": {"mode": "off"}}}
    assert tuning_of(off, file="f").silent("level_changes", "c", rules=LEVELS)
    assert not tuning_of(off | exception, file="f").silent("level_changes", "c", rules=LEVELS)
