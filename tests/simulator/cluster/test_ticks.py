"""Slow ticks, long runs and large clusters."""

import time
from dataclasses import replace

import numpy as np
import pytest

from simulator import Cluster, ClusterSpec
from simulator.cluster.layout import MAX_GPUS, one_job
from slowrank.telemetry import JobSteps, NodeSample
from tests.simulator.readings import cluster, records, series, steps


def slow(spec):
    return replace(spec, send_seconds=10.0)


def test_devices_begin_in_their_steady_state():
    """From the first sample on, power and temperature are what they are for the rest of the run."""
    found = records(cluster(), seconds=300)
    for metric, within in (("gpu.power_watts", 12.0), ("gpu.temp_celsius", 1.5)):
        values = series(found, metric, 0)
        np.testing.assert_allclose(values[:30].mean(axis=0), values[200:].mean(axis=0), atol=within)


@pytest.mark.parametrize(
    "metric", ["gpu.energy_millijoules_total", "nic.port.tx_bytes_total", "host.context_switches_total"]
)
def test_counters_rise_as_fast_at_ten_seconds_as_at_one(metric):
    """A tick of ten seconds counts what ten ticks of one count."""
    one, ten = (records(spec, seconds=600) for spec in (cluster(), slow(cluster())))
    rates = []
    for found, tick in ((one, 1.0), (ten, 10.0)):
        values = series(found, metric, 0)
        rates.append((values[-1] - values[0]) / (tick * (len(values) - 1)))
    np.testing.assert_allclose(rates[1], rates[0], rtol=0.02)


def test_energy_is_the_integral_of_power():
    """What the energy counter gains is the power shown, over the time of the tick."""
    found = records(slow(cluster()), seconds=600)
    power, energy = (series(found, name, 1) for name in ("gpu.power_watts", "gpu.energy_millijoules_total"))
    np.testing.assert_allclose(np.diff(energy, axis=0), power[1:] * 1e4, rtol=1e-3)


def test_every_step_is_reported_once_whatever_the_tick():
    """The step rows are the same at both ticks, but for those not yet sent."""
    one, ten = (steps(records(spec, seconds=300), "compute_seconds") for spec in (cluster(), slow(cluster())))
    assert len(one) - 10 < len(ten) <= len(one)
    np.testing.assert_array_equal(ten, one[: len(ten)])


def test_sequence_numbers_have_no_gaps():
    """Whatever a node sends, its records count up by one."""
    for spec in (cluster(), slow(cluster())):
        found = records(spec, seconds=120)
        mine = [r.seq for r in found if isinstance(r, NodeSample | JobSteps) and r.node == "sim-0001"]
        assert sorted(mine) == list(range(len(mine)))


@pytest.mark.alone
def test_twelve_thousand_nodes_run():
    """100,000 GPUs give their records at less than 60 µs for each second of a node."""
    spec = ClusterSpec(nodes=12_500, jobs=(one_job(12_500, 8),))
    start = time.thread_time()
    samples = sum(isinstance(r, NodeSample) for r in Cluster(spec, seed=1).run(4))
    assert samples == 4 * 12_500
    assert (time.thread_time() - start) / samples < 60e-6


def test_more_than_can_be_held_is_refused():
    """A cluster beyond the limit is refused before anything is allocated."""
    with pytest.raises(ValueError, match=f"{MAX_GPUS} GPUs"):
        ClusterSpec(nodes=100_000_000, jobs=(one_job(100_000_000, 8),))
