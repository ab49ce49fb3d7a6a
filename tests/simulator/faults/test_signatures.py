"""What each fault of the catalogue leaves in the records, beside what its peers show."""

from dataclasses import replace

import numpy as np
import pytest

from simulator import Cluster, Fault
from simulator.faults.catalogue import CATALOGUE
from simulator.faults.fault import parse_fault
from slowrank.telemetry import JobSteps, NodeEvent, NodeSample, encode
from tests.simulator.readings import START, cluster, records, series, steps

ONSET, NODE, GPU, PEER = 60.0, 1, 2, 0


def hit(kind, seconds=150.0, **change):
    """Run the small cluster with one fault as usual for its kind."""
    fault = replace(parse_fault(f"{kind}:node={NODE},gpu={GPU},onset={ONSET}"), **change)
    return records(cluster(), fault, seconds=seconds)


def rise(found, metric, node):
    """Return how much a counter rose after the onset, per instance."""
    values = series(found, metric, node)
    return values[-1] - values[int(ONSET) - 1]


def longer_transfer(found):
    """Return how many times longer the data-parallel group of the GPU transfers after the onset."""
    group = slice(GPU, None, 4)
    before, after = (
        steps(found, "comm_seconds", after=a, before=b)[:, group].mean() for a, b in ((0, 60), (70, 200))
    )
    return after / before


def codes(found):
    return [r.code for r in found if isinstance(r, NodeEvent)]


@pytest.mark.parametrize("kind", CATALOGUE)
def test_nothing_shows_before_the_onset(kind):
    """Until a fault comes on, the records are byte for byte those of the healthy cluster."""
    until = START + ONSET - 10
    healthy, hurt = records(cluster(), seconds=ONSET + 10), hit(kind, seconds=ONSET + 10)
    assert [encode(r) for r in healthy if r.ts < until] == [encode(r) for r in hurt if r.ts < until]
    assert [encode(r) for r in healthy] != [encode(r) for r in hurt]


@pytest.mark.parametrize(
    "kind", ["ecc_uncorrectable", "gpu_exec", "gpu_lost", "gsp_hang", "nic_crash", "job_hang"]
)
def test_a_fault_that_stops_a_rank_stops_the_job(kind):
    """Steps end, no rank sends, and the others spin fully utilised at a third of the power."""
    found = hit(kind)
    assert max(r.ts for r in found if isinstance(r, JobSteps)) < START + ONSET + 5
    assert not rise(found, "nic.port.tx_bytes_total", PEER)[0] > 1e9
    power = series(found, "gpu.power_watts", PEER)
    assert 0.3 < power[-20:].mean() / power[20:50].mean() < 0.55
    assert series(found, "gpu.utilization_ratio", PEER)[-20:].min() > 0.95


@pytest.mark.parametrize("kind", ["ecc_uncorrectable", "gpu_exec", "job_hang"])
def test_the_culprit_of_a_stop_does_not_spin(kind):
    """Where the process is gone or stands still, power and utilisation fall to idle within two seconds."""
    found = hit(kind)
    after = slice(int(ONSET) + 2, int(ONSET) + 20)
    assert series(found, "gpu.power_watts", NODE)[after, GPU].max() < 110
    assert series(found, "gpu.utilization_ratio", NODE)[after, GPU].max() == 0
    assert series(found, "gpu.utilization_ratio", NODE)[after, GPU - 1].min() > 0.95


def test_waiting_ranks_give_up_on_a_dead_one_after_the_time_out():
    """Ten minutes after a process died its peers exit too, and their GPUs go idle; a hang they sit out."""
    job = replace(cluster().jobs[0], timeout_seconds=40.0)
    power = {}
    for kind in ("gpu_exec", "job_hang"):
        fault = Fault(kind=kind, node=NODE, gpu=GPU, onset=ONSET)
        power[kind] = series(records(cluster(job=job), fault, seconds=150), "gpu.power_watts", PEER)
    assert power["gpu_exec"][85:95].mean() > 200 > 110 > power["gpu_exec"][-20:].max()
    assert power["job_hang"][-20:].mean() > 200


def test_after_the_repair_a_new_attempt_starts_slowly():
    """A repaired job takes its next attempt, repeats the steps since the checkpoint and warms up."""
    fault = Fault(kind="gpu_exec", node=NODE, gpu=GPU, onset=ONSET, duration=20)
    job = replace(cluster(checkpoint_every=10).jobs[0], restart_seconds=30.0)
    found = records(cluster(job=job), fault, seconds=200)
    attempts = [(r.ts - START, r.attempt) for r in found if isinstance(r, JobSteps)]
    assert {a for t, a in attempts if t < ONSET + 5} == {0}
    assert {a for t, a in attempts if t > ONSET + 20} == {1}
    assert min(t for t, a in attempts if a) > ONSET + 50
    again = steps(found, "step_seconds", after=ONSET + 20)[:, 0]
    assert again[0] > 2 * np.median(again)
    first_again = min(s.attempt for s in found if isinstance(s, JobSteps) and s.ts > START + ONSET + 50)
    assert first_again == 1


def test_an_uncorrectable_error_is_logged_and_counted():
    """The XIDs, the error counter and the pending remap name the GPU."""
    found = hit("ecc_uncorrectable")
    assert codes(found) == ["xid.48", "xid.63", "xid.94"]
    assert rise(found, "gpu.ecc.uncorrected_total", NODE).tolist() == [0, 0, 1, 0]
    assert rise(found, "gpu.xid_events_total", NODE).tolist() == [0, 0, 3, 0]
    assert series(found, "gpu.row_remap.pending", NODE)[-1].tolist() == [0, 0, 1, 0]


@pytest.mark.parametrize(
    ("kind", "counter", "floor"),
    [
        ("ecc_storm", "gpu.ecc.corrected_total", 600),
        ("hbm_degradation", "gpu.ecc.corrected_total", 60),
        ("nvlink_error", "gpu.nvlink.crc_errors_total", 10_000),
        ("pcie_downgrade", "gpu.pcie.replay_total", 10),
    ],
)
def test_errors_of_a_gpu_are_counted_on_it_alone(kind, counter, floor):
    """The error counter of the GPU rises far beyond that of its neighbours."""
    risen = rise(hit(kind), counter, NODE)
    assert risen[GPU] > floor
    assert np.delete(risen, GPU).max() < 5


def test_a_hung_driver_freezes_what_it_shows():
    """Readings of the GPU stay identical, energy included, reads take seconds, and the log gives the
    reason."""
    found = hit("gsp_hang")
    energy = series(found, "gpu.energy_millijoules_total", NODE)[int(ONSET) + 2 :]
    assert len(set(energy[:, GPU])) == 1
    assert np.diff(energy[:, GPU - 1]).min() > 0
    assert series(found, "gpu.nvml_call_seconds", NODE)[-1, GPU] > 1
    assert codes(found)[:2] == ["xid.119", "xid.119"]


def test_an_nvlink_error_slows_the_whole_node():
    """All GPUs of the node compute longer, the other nodes wait."""
    found = hit("nvlink_error", magnitude=1.15, shape="step")
    compute = steps(found, "compute_seconds", after=ONSET + 5).mean(axis=0)
    healthy = np.delete(compute, slice(4, 8))
    assert compute[4:8] / healthy.mean() == pytest.approx(1.15, rel=0.02)
    assert "xid.74" in codes(found)


def test_throttling_comes_with_heat_and_power_capping_with_all_gpus():
    """Heat raises temperature and its time counter of one GPU, a power brake holds the clocks of all."""
    hot = hit("thermal_throttle", shape="step", magnitude=1.3)
    assert series(hot, "gpu.temp_celsius", NODE)[-10:].mean(axis=0).argmax() == GPU
    assert rise(hot, "gpu.throttle.thermal_nanoseconds_total", NODE)[GPU] > 80e9
    capped = hit("power_brake")
    clock = series(capped, "gpu.clock.sm_hz", NODE)
    assert (clock[-10:].mean(axis=0) / clock[20:50].mean(axis=0)).max() < 0.85
    assert rise(capped, "gpu.throttle.power_nanoseconds_total", NODE).min() > 80e9
    assert rise(capped, "gpu.throttle.power_nanoseconds_total", PEER).max() == 0


def test_a_narrow_bus_slows_the_transfer_of_the_group():
    """Width and traffic fall to a quarter, and the transfer of gradients takes longer for all."""
    found = hit("pcie_downgrade", magnitude=4.0)
    width = series(found, "gpu.pcie.link_width", NODE)[-1]
    assert width.tolist() == [16, 16, 4, 16]
    traffic = series(found, "gpu.pcie.tx_bytes_per_second", NODE)[-20:].mean(axis=0)
    assert traffic[GPU] / traffic[0] == pytest.approx(0.25, rel=0.1)
    assert longer_transfer(found) == pytest.approx(4, rel=0.1)


def test_half_a_nic_waits_to_send_more_than_its_rail():
    """The transfer doubles for the group, and only the port itself counts time in which data waits."""
    found = hit("nic_slow", magnitude=2.0)
    waited = [rise(found, "nic.port.xmit_wait_ticks_total", node) for node in (NODE, PEER)]
    sent = [rise(found, "nic.port.tx_bytes_total", node) for node in (NODE, PEER)]
    assert waited[0][1] / sent[0][1] > 20 * waited[1][1] / sent[1][1]
    assert longer_transfer(found) == pytest.approx(2, rel=0.1)


def test_a_dead_port_freezes_its_counters():
    """The port is down, its counters stand, and the log has the loss once."""
    found = hit("nic_crash")
    assert series(found, "nic.port.up", NODE)[-1].tolist() == [1, 0]
    assert codes(found) == ["nic.link_down"]
    assert rise(found, "nic.port.link_downed_total", NODE).tolist() == [0, 1]
    assert set(np.diff(series(found, "nic.port.rx_bytes_total", NODE)[70:, 1])) == {0}


def test_a_flapping_port_dips_to_zero_and_returns():
    """Between losses the port sends as before; each loss is counted whether a sample saw it or not."""
    found = hit("nic_flap", period=15.0, duty=0.1, duration=60.0)
    moved = np.diff(series(found, "nic.port.tx_bytes_total", NODE)[:, 1])
    assert (moved[60:120] == 0).any()
    assert np.median(moved[60:120]) == pytest.approx(np.median(moved[:60]), rel=0.1)
    assert rise(found, "nic.port.link_downed_total", NODE)[1] == 4
    assert codes(found).count("nic.link_up") == 4


def test_a_bad_link_counts_errors_on_its_port():
    """Symbol and CRC errors rise on one port and its flows take longer."""
    found = hit("link_errors", shape="step", magnitude=2.0)
    for counter in ("symbol_errors", "rx_errors", "out_of_sequence", "local_ack_timeout"):
        assert rise(found, f"nic.port.{counter}_total", NODE)[1] > 100
        assert rise(found, f"nic.port.{counter}_total", NODE)[0] < 5


def test_congestion_marks_every_node_and_climbs():
    """Congestion notifications rise on all ports alike and transfers lengthen rung by rung."""
    found = hit("congestion", shape="ladder", period=20.0, magnitude=5.0)
    risen = np.concatenate([rise(found, "nic.port.cnp_handled_total", node) for node in range(4)])
    assert risen.min() > 100_000
    assert risen.max() / risen.min() < 1.1
    comm = [np.median(steps(found, "comm_seconds", after=a, before=a + 20)) for a in (40, 60, 82, 102, 122)]
    assert np.all(np.diff(comm) > 0.05)


def test_a_dead_switch_takes_its_nodes_within_a_second():
    """All nodes behind the switch fall silent together and the job with them."""
    spec = replace(cluster(), nodes_per_switch=2)
    found = records(spec, Fault(kind="switch_down", node=NODE, onset=ONSET), seconds=100)
    last = {node: max(r.ts - START for r in found if r.node == f"sim-{node:04d}") for node in range(4)}
    assert max(abs(last[n] - ONSET) for n in (0, 1)) < 1.0
    assert min(last[n] for n in (2, 3)) > 98
    assert max(r.ts for r in found if isinstance(r, JobSteps)) < START + ONSET + 5


def test_a_rail_fault_hits_one_port_of_every_node_behind_the_switch():
    """One rail of the domain counts errors, the other does not."""
    spec = replace(cluster(), nodes_per_switch=2)
    found = records(spec, Fault(kind="rail_degraded", node=0, gpu=3, onset=ONSET, magnitude=3.0))
    risen = [rise(found, "nic.port.symbol_errors_total", node).tolist() for node in range(4)]
    assert [r[1] > 1000 for r in risen] == [True, True, False, False]
    assert max(r[0] for r in risen) < 5


@pytest.mark.parametrize(
    ("kind", "metric"), [("host_contention", "host.run_queue"), ("loader_stall", "host.cpu.iowait_ratio")]
)
def test_a_busy_host_shows_on_its_own_node(kind, metric):
    """The host's own reading rises, and the ranks of the node are the slow ones."""
    found = hit(kind, shape="step", magnitude=1.3)
    assert series(found, metric, NODE)[-10:].mean() > 3 * series(found, metric, PEER)[-10:].mean()
    busy = "data_seconds" if kind == "loader_stall" else "compute_seconds"
    table = steps(found, busy, after=ONSET + 5).mean(axis=0)
    assert table[4:8].min() > 1.2 * np.delete(table, slice(4, 8)).max()


def test_memory_fills_up_until_the_kernel_kills():
    """Free memory falls along the ramp, pressure follows, and an OOM kill ends it."""
    found = hit("memory_overload", period=60.0, duration=70.0)
    free = series(found, "host.memory.available_bytes", NODE)[:, 0]
    assert free[115] < 0.2 * free[50] < free[145]
    assert series(found, "host.pressure.memory_some_ratio", NODE).max() > 0.3
    assert codes(found) == ["host.oom_kill"]
    assert rise(found, "host.oom_kills_total", NODE).tolist() == [1]


def test_slow_storage_holds_up_all_ranks_in_the_same_phase():
    """Everybody waits for data, checkpoints take longer, and no node stands out."""
    spec = cluster(checkpoint_every=10, checkpoint_seconds=3.0)
    found = records(spec, Fault(kind="storage_stall", node=NODE, onset=ONSET, magnitude=2.0), seconds=200)
    data = steps(found, "data_seconds", after=ONSET + 5)
    assert np.median(data) > 1.9
    assert data.mean(axis=0).max() / data.mean(axis=0).min() < 1.02
    pause = steps(found, "checkpoint_seconds", after=ONSET + 5)
    assert np.nanmedian(pause) > 9
    assert np.isnan(pause).any()


def test_a_bad_loss_is_the_same_on_every_rank_and_moves_no_machine():
    """A diverging loss and its norm are infinite from then on; a spike multiplies both."""
    healthy = records(cluster())
    for kind in ("nan_loss", "loss_spike"):
        found = hit(kind, seconds=120.0, magnitude=8.0, shape="step")
        norm, loss = steps(found, "grad_norm"), steps(found, "loss")
        assert np.all((norm == norm[:, :1]) | np.isnan(norm))
        if kind == "nan_loss":
            assert np.isinf(norm[-20:]).all()
            assert np.isinf(loss[-20:]).all()
        else:
            assert np.median(norm[-10:]) / np.median(norm[:10]) == pytest.approx(8, rel=0.3)
        power = [series(run, "gpu.power_watts", NODE) for run in (healthy, found)]
        np.testing.assert_array_equal(*power)


def test_a_lemon_fails_a_little_again_and_again():
    """Errors and slowness come in short spells with long calm between them."""
    found = hit("lemon_node", period=40.0, duty=0.4, magnitude=1.1)
    counted = np.diff(series(found, "gpu.ecc.corrected_total", NODE)[:, GPU])
    assert counted[60:76].sum() > 4
    assert counted[77:99].sum() == 0
    assert counted[100:116].sum() > 4


def test_a_crashed_node_is_silent_and_comes_back_as_a_new_boot():
    """A node that went down sends nothing, and after its reboot counts from nothing under a new boot id."""
    fault = Fault(kind="node_silent", node=NODE, onset=ONSET, duration=40)
    found = [r for r in records(cluster(), fault) if isinstance(r, NodeSample) and r.node == "sim-0001"]
    times = [r.ts - START for r in found]
    assert not [t for t in times if ONSET < t < ONSET + 40]
    assert [r.boot_id for r in (found[0], found[-1])] == ["sim-boot-1", "sim-boot-2"]
    energy = series(found, "gpu.energy_millijoules_total", NODE)
    assert energy[-1].max() < energy[0].min()
    assert min(r.seq for r in found if r.boot_id == "sim-boot-2") == 0


def test_a_frozen_exporter_repeats_itself_under_new_times():
    """All blocks of the node stay the same while its clock moves on; the job does not notice."""
    found = hit("frozen_exporter")
    mine = [r for r in found if isinstance(r, NodeSample) and r.node == "sim-0001"][70:]
    assert len({(r.nic, r.host) for r in mine}) == 1
    assert len({r.ts for r in mine}) == len(mine)
    assert len(steps(found, "step_seconds", after=ONSET + 10)) > 20


def test_counters_that_start_anew_go_back_once():
    """All counters of the node fall, rise again, and nothing else changes."""
    found = hit("counter_reset")
    for metric in ("gpu.energy_millijoules_total", "nic.port.tx_bytes_total"):
        assert (np.diff(series(found, metric, NODE)[:, 0]) < 0).sum() == 1
        assert (np.diff(series(found, metric, PEER)[:, 0]) < 0).sum() == 0


def test_late_and_double_batches_carry_what_the_others_would():
    """What comes late comes whole with its own times; what comes twice comes with the same identity."""
    spec = cluster()
    healthy = sorted(encode(r) for r in records(spec, seconds=100))
    late = records(
        spec, Fault(kind="late_batch", node=NODE, onset=20, duration=30, magnitude=25), seconds=100
    )
    assert sorted(map(encode, late)) == healthy
    assert [r.ts for r in late] != sorted(r.ts for r in late)
    mine = [i for i, r in enumerate(late) if r.node == f"sim-{NODE:04d}" and 20 < r.ts - START < 45]
    assert mine == list(range(mine[0], mine[0] + len(mine)))
    twice = records(
        spec, Fault(kind="duplicate_batch", node=NODE, onset=20, duration=30, magnitude=5), seconds=100
    )
    assert len(healthy) + 25 < len(twice)
    assert sorted(set(map(encode, twice))) == healthy


def test_a_skewed_clock_shows_in_samples_rows_and_offset():
    """Samples and step rows of the node are stamped ahead, and the host knows by how much."""
    found = hit("clock_skew", magnitude=5.0)
    offset = series(found, "host.clock_offset_seconds", NODE)[-5:]
    assert offset.mean() == pytest.approx(5, abs=0.01)
    last = {r.node: r.ts for r in found if isinstance(r, JobSteps)}
    assert last["sim-0001"] - last["sim-0000"] == pytest.approx(5, abs=1.2)


def test_truth_has_place_reach_and_culprit():
    """Each kind's truth has its row's verdicts, the nodes it reaches and the ranks at its place."""
    spec = replace(cluster(), nodes_per_switch=2)
    faults = [Fault(kind=kind, node=NODE, gpu=GPU, onset=5) for kind in CATALOGUE]
    found = {t.kind: t for t in Cluster(spec, seed=1, faults=faults).truth}
    assert found["switch_down"].nodes == ("sim-0000", "sim-0001")
    assert len(found["congestion"].nodes) == 4
    assert found["silent_slow"].ranks == (6,)
    assert found["power_brake"].ranks == (4, 5, 6, 7)
    (port,) = Cluster(spec, seed=1, faults=[Fault(kind="nic_flap", node=NODE, onset=5)]).truth
    assert (port.nic, port.ranks) == ("mlx5_0/1", (4, 5))
    assert found["nic_slow"].nic == "mlx5_1/1"
    assert not any(
        t.machine for t in found.values() if t.cause in ("loss", "software", "congestion", "telemetry")
    )
