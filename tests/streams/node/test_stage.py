import math
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from alerts.kinds import UNHEARD_KIND
from alerts.reasoning.fusion import cause
from slowrank.telemetry import NodeEvent, NodeSample, Suspicion
from slowrank.telemetry.columns import pack
from slowrank.telemetry.schema import GPU_V1, HOST_V1, NIC_V1
from streams.node.stage import NodeStage

GPUS = 8


def healthy_gpu(rng, t):
    return {
        "gpu.utilization_ratio": 0.98,
        "gpu.tensor_active_ratio": 0.45 + rng.normal(0, 0.01),
        "gpu.clock.sm_hz": 1.75e9 + rng.normal(0, 5e6),
        "gpu.power_watts": 620 + rng.normal(0, 6),
        "gpu.temp_celsius": 64 + rng.normal(0, 0.4),
        "gpu.pcie.link_width": 16,
        "gpu.pcie.link_width_max": 16,
        "gpu.throttle_reasons": 4,
        "gpu.row_remap.pending": 0,
        "gpu.energy_millijoules_total": int(620_000 * t),
        "gpu.ecc.uncorrected_total": 0,
        "gpu.ecc.corrected_total": int(t / 30),
        "gpu.nvml_call_seconds": 0.02,
    }


def sample(t, *, node="gpu-01", gpus=(), nics=(), host=None, boot_id="b1", seq=None):
    return NodeSample(
        schema=1,
        cluster="c",
        node=node,
        boot_id=boot_id,
        seq=int(t) if seq is None else seq,
        ts=float(t),
        gpu_ids=tuple(str(i) for i in range(len(gpus))),
        nic_ids=tuple(f"mlx5_{i}/1" for i in range(len(nics))),
        gpu=pack(GPU_V1, list(gpus)),
        nic=pack(NIC_V1, list(nics)),
        host=pack(HOST_V1, [host]) if host is not None else b"",
    )


def run(stage, *, seconds, change=lambda t, i, gpu: gpu, seed=1, start=1000):
    rng = np.random.default_rng(seed)
    found: list[Any] = []
    for t in range(start, start + seconds):
        gpus = [change(t, i, healthy_gpu(rng, t)) for i in range(GPUS)]
        found += told(stage.process(sample(t, gpus=[g for g in gpus if g is not None])))
        found += told(stage.tick(t))
    return found


def event(code, ts, *, gpu=3, seq=0, source="kmsg"):
    return NodeEvent(
        cluster="c",
        node="gpu-01",
        boot_id="b1",
        seq=seq,
        ts=ts,
        source=source,
        code=code,
        subject={"gpu_index": gpu},
        message=code,
    )


def told(outputs):
    """Return what may become a finding: not what the finding stage is told of every node."""
    return [s for s in outputs if isinstance(s, Suspicion) and s.kind != UNHEARD_KIND]


def kinds(found, state="raise"):
    return [s.kind for s in found if s.state == state]


@pytest.mark.slow
def test_a_healthy_node_raises_nothing():
    """Twenty minutes of healthy noise on eight GPUs give no suspicion."""
    assert run(NodeStage(), seconds=1200) == []


def test_a_fallen_clock_on_one_gpu_is_suspected_and_cleared_when_it_is_back():
    """One GPU clocking 20 % below its past, its siblings steady, is one suspicion that does not convict."""

    def slowed(t, i, gpu):
        return gpu | ({"gpu.clock.sm_hz": 1.4e9} if i == 5 and 1300 <= t < 1450 else {})

    found = run(NodeStage(), seconds=700, change=slowed)
    raised = [s for s in found if s.state == "raise"]
    assert [(s.kind, s.subject.gpu_index, s.family, s.overwhelming) for s in raised] == [
        ("clock.low", 5, "clocks", False)
    ]
    assert abs(raised[0].onset - 1300) <= 3
    assert raised[0].ts <= 1320
    assert kinds(found, "clear") == ["clock.low"]
    assert kinds(found, "update")


def test_a_change_of_all_gpus_together_accuses_nobody():
    """Power and activity that fall on all GPUs at once are the job's doing."""

    def idle(t, i, gpu):
        return gpu | ({"gpu.power_watts": 120.0, "gpu.tensor_active_ratio": 0.0} if t >= 1300 else {})

    assert run(NodeStage(), seconds=500, change=idle) == []


def test_a_change_of_all_gpus_does_not_date_what_one_does_after_it():
    """The job takes less power, and half a minute later one GPU far less: that began then, not before."""

    def weaker(t, i, gpu):
        watts = gpu["gpu.power_watts"] - (90 if t >= 1300 else 0) - (180 if i == 1 and t >= 1327 else 0)
        return gpu | {"gpu.power_watts": watts}

    raised = [s for s in run(NodeStage(), seconds=450, change=weaker) if s.state == "raise"]
    assert [(s.kind, s.subject.gpu_index) for s in raised] == [("straggler.fail_slow", 1)]
    assert abs(raised[0].onset - 1327) <= 3


def clocks_down(declared, *, batch):
    """Return what is said of a GPU whose clock is low from 1300 to 1450, and of a job's event at a time."""
    rng = np.random.default_rng(1)
    records: list[Any] = []
    for t in range(1000, 1700):
        gpus = [healthy_gpu(rng, t) for _ in range(GPUS)]
        if 1300 <= t < 1450:
            gpus[5]["gpu.clock.sm_hz"] = 1.4e9
        records += [event("job.schedule", float(t), source="job")] if t == declared else []
        records.append(sample(t, gpus=gpus))
    stage = NodeStage()
    return [s for k in range(0, 700, batch) for s in told(stage.process_many(records[k : k + batch]))]


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 64, 701])
def test_levels_are_learnt_anew_from_a_planned_change_on(batch):
    """What moves when a job says that it changes accuses nobody; what was raised before it stays raised."""
    assert clocks_down(1300, batch=batch) == []
    assert [(s.kind, s.state) for s in clocks_down(1400, batch=batch) if s.state != "update"] == [
        ("clock.low", "raise"),
        ("clock.low", "clear"),
    ]


@pytest.mark.parametrize(
    ("left", "kind", "severity"),
    [(None, "gpu.missing", "error"), ({}, "xid.79", "critical")],
    ids=["unsent", "unread"],
)
def test_a_vanished_gpu_is_found_within_four_seconds(left, kind, severity):
    """A GPU that is no longer read while its siblings are is an overwhelming loss of that GPU, which has left
    the bus and pages by itself where the exporter still names it."""
    found = run(NodeStage(), seconds=120, change=lambda t, i, g: left if i == 7 and t >= 1100 else g)
    raised = [s for s in found if s.state == "raise"]
    assert [(s.kind, s.subject.gpu_index, s.overwhelming, s.severity) for s in raised] == [
        (kind, 7, True, severity)
    ]
    assert found[0].ts - 1100 <= 4


def test_an_exporter_restart_without_a_gpu_is_a_new_inventory():
    """A new boot id starts a new expectation: what it never read is not missing."""
    stage, rng = NodeStage(), np.random.default_rng(0)
    for t in range(60):
        stage.process(sample(1000 + t, gpus=[healthy_gpu(rng, t) for _ in range(8)]))
    found: list[Any] = []
    for t in range(60, 90):
        gpus = [healthy_gpu(rng, t) for _ in range(4)]
        found += told(stage.process(sample(1000 + t, gpus=gpus, boot_id="b2")))
    assert found == []


def test_a_driver_that_repeats_itself_is_found():
    """Power, temperature and energy identical to the last bit for ten seconds are a stale driver."""
    held: dict[str, Any] = {}

    def frozen(t, i, gpu):
        if i != 2 or t < 1100:
            return gpu
        return held.setdefault("gpu", gpu)

    assert kinds(run(NodeStage(), seconds=130, change=frozen)) == ["xid.119"]


@pytest.mark.parametrize(
    ("columns", "kind"),
    [
        ({"gpu.throttle_reasons": 64 | 4}, "throttle.thermal"),
        ({"gpu.throttle_reasons": 8 | 64}, "throttle.thermal"),
        ({"gpu.throttle_reasons": 128}, "throttle.power"),
        ({"gpu.throttle_reasons": 8}, "throttle.hw_slowdown"),
        ({"gpu.pcie.link_width": 8}, "link.pcie_downgrade"),
        ({"gpu.row_remap.pending": 1}, "ecc.row_remap_pending"),
        ({"gpu.row_remap.failed": 1}, "ecc.row_remap_failure"),
        ({"gpu.recovery_action": 1}, "xid.154"),
        ({"gpu.ecc.uncorrected_total": 2}, "ecc.uncorrectable"),
    ],
)
def test_explicit_states_name_their_fault_once(columns, kind):
    """A state that holds raises its one kind on its one GPU."""
    found = run(
        NodeStage(), seconds=200, change=lambda t, i, g: g | (columns if i == 1 and t >= 1050 else {})
    )
    assert kinds(found) == [kind]
    assert {s.subject.gpu_index for s in found} == {1}


def test_a_gpu_that_needs_no_recovery_any_more_ends_what_its_events_raised():
    """NVML asks for a reset and half a minute for none: the XID before that is over, one after it is not."""
    stage = NodeStage()
    found: list[Any] = [*stage.process(event("xid.62", 1010.0, gpu=1))]
    found += run(
        stage,
        seconds=120,
        change=lambda t, i, g: g | ({"gpu.recovery_action": 1} if i == 1 and 1011 <= t < 1060 else {}),
    )
    cleared = [(s.kind, s.detector, s.subject.gpu_index) for s in found if s.state == "clear"]
    assert cleared == [("xid.154", "state.recovery_action", 1), ("xid.62", "event.kmsg", 1)]
    # In whatever order they come: an event from before the reset is over as well.
    late = told(stage.process(event("xid.110", 1012.0, gpu=1, seq=1)))
    assert [(s.kind, s.state) for s in late] == [("xid.110", "raise"), ("xid.110", "clear")]
    after = told(stage.process(event("xid.110", 1119.0, gpu=1, seq=2)))
    assert [(s.kind, s.state) for s in after] == [("xid.110", "raise")]


def test_slow_clocks_of_an_idle_gpu_are_no_throttle():
    """The idle reason masks every other throttle reason, and a narrow link at rest saves power."""

    def resting(t, i, gpu):
        return gpu | {
            "gpu.throttle_reasons": 1 | 8 | 64,
            "gpu.pcie.link_width": 4,
            "gpu.utilization_ratio": 0.0,
        }

    assert run(NodeStage(), seconds=120, change=resting) == []


def test_a_counter_reset_is_no_burst():
    """A counter that goes back starts anew: neither the fall nor the climb after it counts as errors."""

    def reset(t, i, gpu):
        return gpu | {
            "gpu.ecc.uncorrected_total": 900 if t < 1050 else 0,
            "gpu.ecc.corrected_total": 10**6 if t < 1050 else 0,
        }

    assert run(NodeStage(), seconds=120, change=reset) == []


def test_duplicates_and_late_samples_change_nothing():
    """Every sample sent twice, and old ones again, give the findings of the clean run."""
    rng = np.random.default_rng(3)
    clean = [
        sample(
            t,
            gpus=[
                healthy_gpu(rng, t) | ({"gpu.clock.sm_hz": 1.2e9} if i == 0 and t > 1200 else {})
                for i in range(8)
            ],
        )
        for t in range(1000, 1400)
    ]
    a, b = NodeStage(), NodeStage()
    once = [s for r in clean for s in a.process(r)]
    twice = [s for n, r in enumerate(clean) for x in (r, r, clean[max(0, n - 7)]) for s in b.process(x)]
    assert once == twice
    assert once
    assert b.ignored == {"duplicate": 401, "late": 399}


def test_an_xid_storm_is_one_fault():
    """A hundred XIDs of one GPU within seconds are one suspicion, of the worst of them."""
    stage = NodeStage()
    found: list[Any] = []
    for n in range(100):
        found += stage.process(event("xid.79" if n % 2 else "xid.45", 1000 + n * 0.02, seq=n))
    assert kinds(found) == ["xid.79"]
    assert found[0].overwhelming


def test_a_worse_fault_within_a_burst_is_told():
    """An uncorrectable error seconds after a lesser fault on the same GPU is not swallowed by the burst."""
    stage = NodeStage()
    found: list[Any] = [
        *stage.process(event("xid.74", 1000.0, seq=1)),
        *stage.process(event("xid.48", 1002.0, seq=2)),
    ]
    assert kinds(found) == ["link.nvlink_degraded", "ecc.uncorrectable"]
    assert [(s.severity, s.overwhelming) for s in found] == [("warning", True), ("critical", True)]


def test_a_context_switch_that_timed_out_is_told_at_once():
    """XID 109 alone is an error of its GPU and outweighs the clock that falls when the process is gone."""
    (found,) = NodeStage().process(event("xid.109", 1000.0))
    assert isinstance(found, Suspicion)
    assert (found.kind, found.severity, found.overwhelming, found.onset) == ("xid.109", "error", True, 1000.0)
    (fallen, *_) = run(
        NodeStage(),
        seconds=400,
        change=lambda t, i, gpu: gpu | ({"gpu.clock.sm_hz": 4e8} if i == 3 and t >= 1300 else {}),
    )
    assert fallen.kind == "clock.low"
    assert cause("clock.low", [fallen, found]).hypothesis == "xid.109"


def test_an_application_fault_convicts_only_when_it_repeats():
    """XID 31 is the application's business until one GPU shows it three times, replays not counted."""
    stage = NodeStage()
    found: list[Any] = []
    for n, ts in enumerate((1000.0, 5000.0, 9000.0)):
        found += stage.process(event("xid.31", ts, seq=n))
        found += stage.process(event("xid.31", ts, seq=n))
    assert [s.overwhelming for s in found] == [False, False, True]


def test_a_flapping_port_is_an_error_the_second_time():
    """One link-down is told at once as a warning; two within five minutes are an error."""
    stage = NodeStage()
    found: list[Any] = []
    rng = np.random.default_rng(0)
    for t in range(1000, 1200):
        down = (t >= 1050) + (t >= 1100)
        nics = [{"nic.port.up": 1, "nic.port.link_downed_total": down if i == 2 else 0} for i in range(4)]
        found += told(stage.process(sample(t, gpus=[healthy_gpu(rng, t) for _ in range(8)], nics=nics)))
    raised = [s for s in found if s.state == "raise"]
    assert {s.kind for s in raised} == {"link.nic_flap"}
    assert {s.subject.nic for s in raised} == {"mlx5_2"}
    assert [(s.ts, s.severity, s.overwhelming) for s in raised] == [
        (1050.0, "warning", True),
        (1100.0, "error", True),
    ]


def ports(stage, rates, *, seconds=400, start=1000):
    """Run a node with four ports; ``rates(t)`` gives the bytes each moved in the second before ``t``."""
    rng, sent, found = np.random.default_rng(9), np.zeros(4), []
    for t in range(start, start + seconds):
        sent += rates(t)
        nics = [
            {"nic.port.tx_bytes_total": int(x), "nic.port.speed_bits_per_second": 4e11, "nic.port.up": 1}
            for x in sent
        ]
        found += told(stage.process(sample(t, gpus=[healthy_gpu(rng, t) for _ in range(8)], nics=nics)))
    return [s for s in found if s.subject.type == "nic"]


def beat(seed=10):
    """Traffic of a job whose steps beat against the seconds: common to all ports, and far from white."""
    rng, level = np.random.default_rng(seed), [0.0]

    def rates(t):
        level[0] = 0.8 * level[0] + rng.normal(0, 0.1)
        return 5e9 * np.exp(level[0] + rng.normal(0, 0.03, 4))

    return rates


@pytest.mark.parametrize("seed", range(3))
def test_traffic_that_moves_all_ports_accuses_none(seed):
    """Strong correlated swings that the ports of a node share are the job's business."""
    assert ports(NodeStage(), beat(seed), seconds=700) == []


def test_a_port_that_falls_behind_its_siblings_is_told_and_cleared():
    """One port at half the rate of the others is found in the same swings, once, and cleared at its end."""
    common = beat()
    slow = np.array([1.0, 0.4, 1.0, 1.0])
    found = ports(NodeStage(), lambda t: common(t) * (slow if 1200 <= t < 1350 else 1.0), seconds=500)
    assert [s.state for s in found if s.state != "update"] == ["raise", "clear"]
    assert {(s.kind, s.subject.nic) for s in found} == {("link.nic_slow", "mlx5_1")}
    assert 1210 <= found[0].ts <= 1260
    assert 1350 <= found[-1].ts <= 1390


@pytest.mark.slow
def test_a_host_without_gpus_gives_no_suspicion():
    """CPU, load and network of an ordinary host may do as they like."""
    stage, rng = NodeStage(), np.random.default_rng(5)
    found: list[Any] = []
    sent = 0
    for t in range(1000, 2000):
        busy = 0.9 if 1300 < t < 1500 else 0.1
        sent += int(rng.integers(0, 10**9 if busy > 0.5 else 10**4))
        host = {
            "host.cpu.utilization_ratio": busy,
            "host.pressure.cpu_some_ratio": busy,
            "host.load1": 8 * busy,
        }
        nics = [
            {"nic.port.tx_bytes_total": sent, "nic.port.speed_bits_per_second": 1e10, "nic.port.up": 1}
        ] * 1
        found += told(stage.process(sample(t, host=host, nics=nics)))
        found += told(stage.tick(t))
    assert found == []


def fleet(stage, alive, *, start=1000, seconds=100, nodes=20):
    found: list[Any] = []
    for t in range(start, start + seconds):
        for n in range(nodes):
            if alive(n, t):
                found += told(stage.process(sample(t, node=f"n{n:02}")))
        found += told(stage.tick(t))
    return found


@pytest.mark.slow
def test_a_silent_node_is_stale_then_silent_and_clears_when_it_is_back():
    """Ten seconds without a record are a stale exporter, thirty a silent node; a new record clears both."""
    found = fleet(NodeStage(), lambda n, t: n != 4 or not 1020 <= t < 1070)
    assert [(s.kind, s.state, s.ts) for s in found] == [
        ("exporter.stale", "raise", 1029.0),
        ("node.silent", "raise", 1049.0),
        ("exporter.stale", "clear", 1070.0),
        ("node.silent", "clear", 1070.0),
    ]
    assert {s.subject.node for s in found} == {"n04"}
    assert not any(s.overwhelming for s in found)


@pytest.mark.parametrize(
    ("offset", "expected"), [(45.0, {"host.clock_skew"}), (0.0, {"exporter.stale", "node.silent"})]
)
def test_a_node_whose_clock_is_set_back_is_not_silent(offset, expected):
    """A clock that was 45 s ahead, and said so, is set right: what the node sends then is word from it.

    Without the offset nobody can tell that from records that come late.
    """
    stage, found = NodeStage(), []
    for t in range(1000, 1120):
        ahead = 1020 <= t < 1060
        host = {"host.clock_offset_seconds": offset if ahead else 0.0}
        found += told(stage.process(sample(t + 45 * ahead, host=host, seq=t)))
        found += told(stage.process(sample(t, node="gpu-02")))
        found += told(stage.tick(t))
    assert {s.kind for s in found if s.state == "raise"} == expected
    assert stage.ignored == {"late": 45}


@pytest.mark.slow
def test_ticking_more_often_changes_nothing():
    """Silence is judged by whole seconds of event time, whatever the rhythm of the ticks."""

    def go(rhythm):
        stage = NodeStage()
        found: list[Any] = []
        for t in range(1000, 1100):
            for n in range(10):
                if n != 3 or t < 1020:
                    found += told(stage.process(sample(t, node=f"n{n}")))
            for k in range(rhythm):
                found += told(stage.tick(t + k / rhythm))
        return found

    assert go(1) == go(7) != []


def test_values_that_were_not_read_raise_nothing():
    """Columns that are missing now and then, or always, are no fault."""

    def patchy(t, i, gpu):
        if i == 0:
            return {"gpu.power_watts": gpu["gpu.power_watts"]}
        return (
            gpu
            if (t + i) % 3
            else dict.fromkeys(gpu, math.nan) | {"gpu.temp_celsius": gpu["gpu.temp_celsius"]}
        )

    assert run(NodeStage(), seconds=400, change=patchy) == []


def gpu_run(change, *, seconds=200):
    return run(NodeStage(), seconds=seconds, change=change)


def test_a_slower_pcie_generation_than_the_siblings_is_a_downgrade_under_load():
    """One GPU at generation 3 among others at 5 is told; at rest all may be slow."""

    def slow(t, i, gpu):
        return gpu | {"gpu.pcie.link_gen": 3 if i == 6 and t >= 1050 else 5}

    (found,) = [s for s in gpu_run(slow, seconds=130) if s.state == "raise"]
    assert (found.kind, found.subject.gpu_index, found.ts) == ("link.pcie_downgrade", 6, 1080.0)
    assert gpu_run(lambda t, i, g: slow(t, i, g) | {"gpu.utilization_ratio": 0.0}) == []


def test_a_lower_power_limit_than_the_siblings_is_one_where_it_lowers_the_clock():
    """Beside them alone: a limit that all have is no difference, and one that costs no clock no cause."""

    def limited(watts, hz, *, who=(6,)):
        def change(t, i, columns):
            low = {"gpu.power_limit_watts": watts, "gpu.clock.sm_hz": hz} if i in who and t >= 1020 else {}
            return columns | {"gpu.power_limit_watts": 700.0, "gpu.clock.sm_hz": 1.755e9} | low

        return [
            s for s in gpu_run(change, seconds=70) if s.state == "raise" and s.rule_id.startswith("state")
        ]

    (found,) = limited(400.0, 1.2e9)
    assert (found.kind, found.subject.gpu_index, found.ts) == ("throttle.power_limit", 6, 1050.0)
    assert (found.family, found.overwhelming) == ("clocks", False)
    assert limited(400.0, 1.755e9) == []
    assert limited(690.0, 1.2e9) == []
    assert limited(400.0, 1.2e9, who=range(8)) == []


def test_a_clock_below_the_siblings_since_before_the_first_sample_is_low():
    """No change shows a lock that was left over: the other GPUs of the node do, if three of them are read."""

    def locked(hz, gpu=6, *, read=8, load=0.97):
        def change(t, i, columns):
            clock = {"gpu.clock.sm_hz": hz if i == gpu else 1.755e9 - 15e6 * (i % 3)} if i < read else {}
            return columns | {"gpu.clock.sm_hz": float("nan"), "gpu.utilization_ratio": load} | clock

        return [s for s in gpu_run(change, seconds=60) if s.state == "raise"]

    (found,) = locked(1.65e9)
    assert (found.kind, found.subject.gpu_index, found.ts, found.onset) == ("clock.low", 6, 1030.0, 1000.0)
    assert (found.family, found.overwhelming) == ("clocks", False)
    assert locked(1.695e9) == []
    assert locked(1.65e9, load=0.0) == []
    assert len(locked(1.65e9, gpu=0, read=4)) == 1
    assert locked(1.65e9, gpu=0, read=3) == []
    # Nor one that was at full clock before: that is a change.
    fallen = gpu_run(
        lambda t, i, g: g | {"gpu.clock.sm_hz": 1.65e9 if i == 6 and t > 1001 else 1.755e9}, seconds=60
    )
    assert fallen == []


@pytest.mark.parametrize(("replays", "told"), [(15, False), (17, True)])
def test_pcie_replays_are_judged_by_what_the_link_allows(replays, told):
    """Sixteen lanes of generation 4 may replay fifteen times a minute."""

    def replaying(t, i, gpu):
        count = min(replays, max(0, t - 1050)) if i == 2 else 0
        return gpu | {"gpu.pcie.link_gen": 4, "gpu.pcie.replay_total": count}

    assert kinds(gpu_run(replaying)) == (["link.pcie_replay"] if told else [])


@pytest.mark.parametrize(
    ("rows", "expected"),
    [(10, []), (11, ["ecc.correctable_rate"]), (512, ["ecc.correctable_rate", "ecc.row_remap_failure"])],
)
def test_remapped_rows_are_told_by_their_number(rows, expected):
    """More than ten are a warning, all that there are to spare a failure."""

    def remapped(t, i, gpu):
        return gpu | {
            "gpu.row_remap.correctable_total": rows - 1 if i == 4 else 0,
            "gpu.row_remap.uncorrectable_total": int(i == 4),
        }

    assert kinds(gpu_run(remapped, seconds=60)) == expected


@pytest.mark.parametrize(("alone", "expected"), [(True, ["throttle.power"]), (False, [])])
def test_a_power_limit_that_all_gpus_touch_holds_none_of_them_back(alone, expected):
    """Time at the limit counts where one GPU spends it and its siblings do not."""

    def capped(t, i, gpu):
        held = i == 3 if alone else True
        return gpu | {"gpu.throttle.power_nanoseconds_total": int(2e8 * (t - 1000)) if held else 0}

    assert kinds(gpu_run(capped, seconds=60)) == expected


def test_a_power_change_is_judged_against_the_limit_of_the_gpu():
    """A fall of 15 W is many per cent for a GPU of 150 W, and little for one of 700 W."""

    def weaker(limit):
        def change(t, i, gpu):
            watts = 0.85 * limit + 0.25 * (gpu["gpu.power_watts"] - 620)
            fallen = 15.0 if i == 1 and t >= 1200 else 0.0
            return gpu | {"gpu.power_limit_watts": limit, "gpu.power_watts": watts - fallen}

        return change

    (found,) = [s for s in gpu_run(weaker(150.0), seconds=300) if s.state == "raise"]
    (told,) = found.evidence
    assert (found.subject.gpu_index, told.metric, told.unit) == (1, "gpu.power_watts", "W")
    assert told.baseline is not None
    assert (told.value, told.baseline.median) == pytest.approx((112.5, 127.5), abs=2.0)
    assert told.baseline.n >= 90
    assert 0.5 < told.baseline.mad < 2.0
    assert gpu_run(weaker(700.0), seconds=300) == []


def nic_run(change, *, seconds=120, gpus=8, job_id=None):
    """A node with eight ports; ``change(t, i)`` gives the columns of the i-th."""
    stage, rng = NodeStage(), np.random.default_rng(2)
    found: list[Any] = []
    for t in range(1000, 1000 + seconds):
        nics = [{"nic.port.up": 1, "nic.port.speed_bits_per_second": 4e11} | change(t, i) for i in range(8)]
        record = sample(t, gpus=[healthy_gpu(rng, t) for _ in range(gpus)], nics=nics)
        found += told(stage.process(replace(record, job_id=job_id)))
    return found


def test_a_port_that_was_up_and_is_down_is_told_and_cleared():
    """A link down for 10 s is a warning, also without a known job; a port that was never up is none."""

    def down(t, i):
        return {"nic.port.up": 0} if i == 7 or (i == 3 and 1030 <= t < 1060) else {}

    found = nic_run(down)
    assert [(s.kind, s.state, s.subject.nic, s.ts) for s in found] == [
        ("link.nic_flap", "raise", "mlx5_3", 1040.0),
        ("link.nic_flap", "clear", "mlx5_3", 1089.0),
    ]
    assert found[0].overwhelming
    assert nic_run(down, gpus=0) == []


def test_ports_that_go_down_together_are_no_cable():
    """The node restarts, or its switch does: other evidence decides."""
    found = nic_run(lambda t, i: {"nic.port.up": int(not 1030 <= t < 1060)})
    assert {s.kind for s in found if s.state == "raise"} == {"link.nic_flap"}
    assert not any(s.overwhelming for s in found)


@pytest.mark.parametrize(("others", "seconds", "expected"), [(1, 60, 1033.0), (1, 2, None), (0, 60, None)])
def test_a_dead_port_under_a_job_is_an_error_within_three_seconds(others, seconds, expected):
    """While its siblings are up, and longer than a flap; where all of them are down it is no port's fault."""

    def down(t, i):
        return {"nic.port.up": int(others and i != 3)} if 1030 <= t < 1030 + seconds else {}

    errors = [s for s in nic_run(down, job_id="j") if s.state == "raise" and s.severity == "error"]
    told = [(s.kind, s.subject.nic, s.ts, s.onset, s.overwhelming) for s in errors]
    assert told == ([] if expected is None else [("link.nic_flap", "mlx5_3", expected, 1030.0, True)])


def test_a_port_that_falls_back_to_a_lower_speed_is_told():
    """Half the speed it once had, for thirty seconds."""
    found = nic_run(lambda t, i: {"nic.port.speed_bits_per_second": 2e11} if i == 5 and t >= 1030 else {})
    assert [(s.kind, s.state, s.subject.nic) for s in found] == [("link.nic_slow", "raise", "mlx5_5")]


def test_a_rare_counter_counts_where_the_siblings_do_not():
    """Two lost sequences on one port are told, a few on all of them are the path's."""

    def lost(ports, often):
        return lambda t, i: {"nic.port.out_of_sequence_total": (t - 1000) // often if i in ports else 0}

    assert {s.subject.nic for s in nic_run(lost({2}, 40))} == {"mlx5_2"}
    assert nic_run(lost(set(range(8)), 10)) == []


def test_a_dirty_cable_is_an_error_within_the_hour():
    """A hundred and twenty symbol errors an hour convict, two a minute in between do not."""
    found = nic_run(
        lambda t, i: {"nic.port.symbol_errors_total": (t - 1000) // 2 if i == 1 else 0}, seconds=260
    )
    assert [(s.kind, s.overwhelming) for s in found if s.state == "raise"] == [("link.nic_errors", True)]
    assert nic_run(lambda t, i: {"nic.port.symbol_errors_total": (t - 1000) // 30}, seconds=260) == []


def test_an_application_fault_on_several_gpus_is_the_software():
    """XID 31 that repeats on one GPU convicts only while no other GPU shows it."""
    stage = NodeStage()
    found: list[Any] = []
    for n, (ts, gpu) in enumerate([(1000.0, 3), (2000.0, 5), (5000.0, 3), (9000.0, 3), (9100.0, 5)]):
        found += stage.process(event("xid.31", ts, gpu=gpu, seq=n))
    assert [s.overwhelming for s in found] == [False] * 5


def test_a_gpu_with_five_fatal_xids_in_a_day_is_a_repeat_offender():
    """Whichever they are; those of another GPU, and repeats within the hour, do not count."""
    stage = NodeStage()
    found: list[Any] = []
    for n, code in enumerate(["xid.48", "xid.79", "xid.119", "xid.95", "xid.48"]):
        found += stage.process(event(code, 5000.0 * n, seq=n))
        found += stage.process(event(code, 5000.0 * n + 600, seq=100 + n))
        found += stage.process(event(code, 5000.0 * n, gpu=6, seq=200 + n)) if n else []
    assert [(s.kind, s.subject.gpu_index, s.ts) for s in found if s.kind == "node.lemon"] == [
        ("node.lemon", 3, 20000.0)
    ]


def test_one_fault_that_repeats_itself_for_hours_is_no_repeat_offender():
    """A GPU whose driver complains every minute for ten hours has failed once."""
    stage, found = NodeStage(), list[Any]()
    for n in range(600):
        found += stage.process(event("xid.119", 60.0 * n, seq=n))
    assert {s.kind for s in found} == {"xid.119"}


def test_the_values_of_a_pause_are_no_change_of_level():
    """GPUs of a checkpoint end their pause some samples apart: idle clocks and little power slow nobody."""
    idle = {"gpu.clock.sm_hz": 3.45e8, "gpu.power_watts": 75.0, "gpu.tensor_active_ratio": 0.0}

    def paused(t, i, gpu):
        rests = 1300 <= t < (1360 if i == 4 else 1320)
        how = {"gpu.utilization_ratio": 0.0, "gpu.throttle_reasons": 1}
        return gpu | (idle | how if rests else {})

    assert run(NodeStage(), seconds=450, change=paused) == []
    # The same values under load are.
    busy = run(NodeStage(), seconds=450, change=lambda t, i, g: g | (idle if i == 4 and t >= 1300 else {}))
    assert "clock.low" in kinds(busy)
