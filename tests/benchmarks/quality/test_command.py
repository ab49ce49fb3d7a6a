"""The evaluation as a whole: what is run, what is continued, what is printed."""

import re

import pytest

from benchmarks.quality import command
from benchmarks.quality.columns import BARE, without
from benchmarks.quality.run import run
from benchmarks.quality.scenarios.parts import PARTS
from benchmarks.quality.scenarios.scenario import REPORT_SEEDS, TUNING_SEEDS, Scenario
from benchmarks.quality.scoring.report import lines, summary
from simulator import Cluster, ClusterSpec, Fault, JobSpec
from slowrank.telemetry import NodeSample
from slowrank.telemetry.columns import unpack
from slowrank.telemetry.schema import SAMPLE_SCHEMAS

FAULT = Fault(kind="gpu_lost", node=1, gpu=1, onset=12.0)


def lost_gpu(seed):
    spec = ClusterSpec(nodes=4, gpus=2, nics=1, jobs=(JobSpec(dp=4, tp=2, step_seconds=0.5),))
    return [
        Scenario(
            part="events", row="lost", seed=seed, spec=spec, seconds=25.0, faults=(FAULT,), rows=("lost",)
        )
    ]


def test_tuning_and_report_seeds_never_meet():
    """No seed is both looked at and reported."""
    assert not set(TUNING_SEEDS) & set(REPORT_SEEDS[:10_000])


@pytest.mark.parametrize("part", PARTS)
def test_a_seed_draws_the_same_scenario(part):
    """Scenarios are a function of the seed, and name a row for each of their faults."""
    assert PARTS[part](5) == PARTS[part](5) != PARTS[part](6)
    assert all(len(s.rows) in (0, len(s.faults)) and s.part in PARTS for s in PARTS[part](5))


def test_an_explicit_event_goes_the_whole_way():
    """A GPU off the bus: simulated, found at its place, timed, and compared with the baselines."""
    outcome = run(lost_gpu(3)[0])
    [event] = outcome.events
    assert (event.nodes[0], event.gpu) in [a.places[0] for a in outcome.alarms["slowrank"] if a.places]
    assert len(outcome.alarms) > 8
    assert not outcome.set_aside
    assert outcome.node_days == pytest.approx(4 * 25 / 86_400)
    report = "\n".join(lines([outcome]))
    assert "| lost | 1 | 1.000" in report
    figures = summary([outcome])["parts"]["events"]["slowrank"]["lost"]
    assert figures["recall"] == [1.0, 1.0, 1.0]
    value, low, high = figures["opened_median_seconds"]
    assert 0 <= value == low == high < 3
    assert re.search(r"\| (\d\.\d) \[\1, \1\], \1 \[\1, \1\] \|", report)


def test_columns_that_a_node_lacks_are_missing_from_every_sample():
    """Whatever is left out reads as never read, and nothing else changes; results are kept apart."""
    spec = ClusterSpec(nodes=2, gpus=2, nics=1, jobs=(JobSpec(dp=2, tp=2, step_seconds=0.5),))
    [whole] = [
        r for r in Cluster(spec, seed=4).run(1.0) if isinstance(r, NodeSample) and r.node.endswith("1")
    ]
    schema = SAMPLE_SCHEMAS[whole.schema]
    lacking = {*BARE, "nic.port.rx_bytes_total"}

    bare = without(whole, lacking)

    for block, before, after in ((schema.gpu, whole.gpu, bare.gpu), (schema.nic, whole.nic, bare.nic)):
        for was, now in zip(unpack(block, before), unpack(block, after), strict=True):
            assert now == {name: None if name in lacking else value for name, value in was.items()}
    [host] = unpack(schema.host, bare.host)
    assert host["host.clock_offset_seconds"] is None
    assert host["host.load1"] is not None


def test_runs_without_columns_are_not_mixed_with_others(tmp_path, monkeypatch):
    """One results file may hold both; each is reported and continued alone."""
    monkeypatch.setitem(PARTS, "events", lost_gpu)
    path = tmp_path / "results.ndjson"
    [whole] = command.extend(path, ["events"], [1000])
    [bare] = command.extend(path, ["events"], [1000], without=BARE)

    assert (whole.without, bare.without) == ((), BARE)
    assert command.read(path, ["events"]) == [whole]
    assert command.merged([path], ["events"], without=BARE) == [bare]


def test_a_stopped_run_goes_on_where_it_was(tmp_path, monkeypatch):
    """What the file holds is not simulated again, a torn last line is, and the answer is the same."""
    ran = []

    def draw(seed):
        ran.append(seed)
        return lost_gpu(seed)

    monkeypatch.setitem(PARTS, "events", draw)
    path = tmp_path / "results.ndjson"
    whole = command.extend(path, ["events"], [1000, 1001])
    kept = path.read_bytes()
    path.write_bytes(kept[:-20])
    ran.clear()
    assert command.extend(path, ["events"], [1000, 1001]) == whole
    assert ran == [1001]
    assert path.read_bytes() == kept
