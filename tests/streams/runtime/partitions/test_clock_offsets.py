"""Clocks that are far off, distinguished from spools that drain."""

import numpy as np
import pytest
from msgspec.structs import replace

from slowrank.telemetry import JobSteps
from slowrank.telemetry.schema import STEP_SCHEMAS
from streams.columns import columns
from streams.runtime.partitions.clock_offsets import SETTLE_SECONDS, ClockCorrector, shifted
from tests.streams import traffic

NOW = 1_795_160_000.0


def nodes(seconds=60, count=3):
    return list(traffic.nodes(count=count, seconds=seconds, ends=NOW + seconds))


def played(records, *, off, begins=NOW, ends=NOW + 1e6, node="node-1", fits=lambda ts, logged: True):
    """Send records half a second after they were made, one node's clock ``off`` by seconds for a while."""
    clocks: ClockCorrector[float] = ClockCorrector()
    out, news = [], []
    for r in records:
        wrong = r.node == node and begins <= r.ts < ends
        told, logged = replace(r, ts=r.ts + off) if wrong else r, r.ts + 0.5
        out += clocks.take(told, r.ts, logged=logged, fits=fits(told.ts, logged))
        news += clocks.suspicions()
    return out, [(s.state, s.kind, s.subject.node, round(s.evidence[0].value)) for s in news], clocks


@pytest.mark.parametrize("off", [-3600.0, -86_000.0, 120.0, -90.0])
@pytest.mark.parametrize("begins", [NOW, NOW + 20])
def test_a_clock_that_is_off_is_a_finding_and_its_records_are_in_the_right_second(off, begins):
    """From the start or stepping in mid-run; half a second of the way stays in."""
    records = nodes()
    out, news, _ = played(records, off=off, begins=begins)
    assert news == [("raise", "host.clock_skew", "node-1", round(off))]
    assert sorted(ts for _, ts in out) == sorted(r.ts for r in records)
    assert max(abs(r.ts - ts) for r, ts in out) <= 0.51


@pytest.mark.parametrize("off", [3600.0, -86_500.0])
def test_records_beyond_the_limits_of_time_are_refused_until_the_clock_is_known(off):
    """An hour ahead, a day behind: the first seconds are lost, and then none."""
    out, news, _ = played(nodes(), off=off, fits=lambda ts, logged: logged - 86_400 <= ts <= logged + 300)
    assert news == [("raise", "host.clock_skew", "node-1", round(off))]
    taken = [ts for r, ts in out if r.node == "node-1"]
    assert len(taken) == 60 - SETTLE_SECONDS
    assert max(abs(r.ts - ts) for r, ts in out) <= 0.51


def test_a_clock_that_is_put_right_ends_the_finding():
    out, news, _ = played(nodes(), off=-3600.0, begins=NOW + 10, ends=NOW + 40)
    assert [state for state, *_ in news] == ["raise", "clear"]
    assert max(abs(r.ts - ts) for r, ts in out) <= 0.51


@pytest.mark.parametrize("speed", [1000.0, 5.0, 1.5, 0.5])
def test_a_spool_that_empties_is_no_clock(speed):
    """Faster or slower than time passes: every record comes as it was made, and soon."""
    clocks: ClockCorrector[float] = ClockCorrector()
    spooled = [r for r in nodes(seconds=300) if r.node == "node-1"]
    out = []
    for n, r in enumerate(spooled):
        logged = NOW + 3600 + n / speed
        out += [(got.ts, logged) for got, _ in clocks.take(r, 0.0, logged=logged)]
    assert [ts for ts, _ in out] == [r.ts for r in spooled]
    assert clocks.suspicions() == []


def test_records_that_workers_send_on_measure_no_clock():
    """A spool drains while its topic grows; the records reach the new partition at the pace of time."""
    clocks: ClockCorrector[float] = ClockCorrector()
    spooled = [r for r in nodes(seconds=120) if r.node == "node-1"]
    out = []
    for r in spooled[:60]:
        out += [got.ts for got, _ in clocks.take(r, 0.0, logged=NOW + 100 + (r.ts - NOW) / 2)]
    for r in spooled[60:]:
        out += [got.ts for got, _ in clocks.take(r, 0.0, logged=r.ts + 75, sent_on=True)]
    assert sorted(out) == [r.ts for r in spooled]
    assert clocks.suspicions() == []


@pytest.mark.parametrize("off", [-3600.0, 120.0])
def test_records_sent_on_are_corrected_by_the_offset_that_is_known(off):
    """A worker needs some seconds to send them on."""
    clocks: ClockCorrector[float] = ClockCorrector()
    for r in nodes(seconds=20):
        wrong = r.node == "node-1"
        clocks.take(replace(r, ts=r.ts + off) if wrong else r, 0.0, logged=r.ts + 0.5)
    (late,) = [r for r in nodes(seconds=21)[-3:] if r.node == "node-1"]
    ((got, _),) = clocks.take(replace(late, ts=late.ts + off), 0.0, logged=late.ts + 9.5, sent_on=True)
    assert got.ts == pytest.approx(late.ts + 0.5, abs=0.01)


def test_a_recording_that_is_played_is_no_clock():
    """Every node is an hour late at the pace of time."""
    clocks: ClockCorrector[float] = ClockCorrector()
    records = nodes()
    out = [got for r in records for got, _ in clocks.take(r, 0.0, logged=r.ts + 3600)]
    assert sorted(r.ts for r in out) == sorted(r.ts for r in records)
    assert clocks.suspicions() == []


def test_a_lone_late_record_is_let_go_when_no_more_comes():
    clocks: ClockCorrector[float] = ClockCorrector()
    (late, *_) = nodes()
    assert clocks.take(late, 0.0, logged=NOW + 3600) == []
    assert clocks.reach(NOW + 3600 + SETTLE_SECONDS) == []
    assert clocks.reach(NOW + 3600 + SETTLE_SECONDS + 1) == [(late, 0.0)]


def test_the_rows_of_steps_are_set_right_too():
    record = next(traffic.job(ranks=8, steps=1))
    schema, right = STEP_SCHEMAS[record.schema].rows, shifted(record, 3600.0)
    assert isinstance(right, JobSteps)
    before, after = columns(schema, record.rows), columns(schema, right.rows)
    for name, values in before.items():
        np.testing.assert_allclose(after[name], values + (3600.0 if name == "ts" else 0), rtol=1e-12)
