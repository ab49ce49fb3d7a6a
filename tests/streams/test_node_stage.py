import math
from typing import Any

import numpy as np
import pytest

from slowrank.telemetry import NodeEvent, NodeSample
from slowrank.telemetry.columns import pack
from slowrank.telemetry.schema import GPU_V1, HOST_V1, NIC_V1
from streams.node_stage import NodeStage

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
        found += stage.process(sample(t, gpus=[g for g in gpus if g is not None]))
        found += stage.tick(t)
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


def kinds(found, state="raise"):
    return [s.kind for s in found if s.state == state]


def test_a_healthy_node_raises_nothing():
    """Twenty minutes of healthy noise on eight GPUs give no suspicion."""
    assert run(NodeStage(), seconds=1200) == []


def test_a_fallen_clock_on_one_gpu_is_suspected_and_cleared_when_it_is_back():
    """One GPU clocking 20 % below its past, its siblings steady, is one suspicion that does not convict."""

    def slowed(t, i, gpu):
        return gpu | ({"gpu.clock.sm_hz": 1.4e9} if i == 5 and 1300 <= t < 1500 else {})

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


def test_a_vanished_gpu_is_found_within_four_seconds():
    """A GPU that is no longer read while its siblings are is an overwhelming loss of that GPU."""
    found = run(NodeStage(), seconds=120, change=lambda t, i, g: None if i == 7 and t >= 1100 else g)
    assert [(s.kind, s.subject.gpu_index, s.overwhelming) for s in found if s.state == "raise"] == [
        ("xid.79", 7, True)
    ]
    assert found[0].ts - 1100 <= 4


def test_an_exporter_restart_without_a_gpu_is_a_new_inventory():
    """A new boot id starts a new expectation: what it never read is not missing."""
    stage, rng = NodeStage(), np.random.default_rng(0)
    for t in range(60):
        stage.process(sample(1000 + t, gpus=[healthy_gpu(rng, t) for _ in range(8)]))
    found: list[Any] = []
    for t in range(60, 90):
        found += stage.process(sample(1000 + t, gpus=[healthy_gpu(rng, t) for _ in range(4)], boot_id="b2"))
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
    assert [s.overwhelming for s in found] == [False, True]


def test_an_application_fault_convicts_only_when_it_repeats():
    """XID 31 is the application's business until one GPU shows it three times, replays not counted."""
    stage = NodeStage()
    found: list[Any] = []
    for n, ts in enumerate((1000.0, 5000.0, 9000.0)):
        found += stage.process(event("xid.31", ts, seq=n))
        found += stage.process(event("xid.31", ts, seq=n))
    assert [s.overwhelming for s in found] == [False, False, True]


def test_a_flapping_port_is_an_error_the_second_time():
    """One link-down is a warning; two within five minutes open a finding."""
    stage = NodeStage()
    found: list[Any] = []
    rng = np.random.default_rng(0)
    for t in range(1000, 1200):
        down = (t >= 1050) + (t >= 1100)
        nics = [{"nic.port.up": 1, "nic.port.link_downed_total": down if i == 2 else 0} for i in range(4)]
        found += stage.process(sample(t, gpus=[healthy_gpu(rng, t) for _ in range(8)], nics=nics))
    raised = [s for s in found if s.state == "raise"]
    assert {s.kind for s in raised} == {"link.nic_flap"}
    assert {s.subject.nic for s in raised} == {"mlx5_2"}
    assert [s.overwhelming for s in raised] == [False, True]


def ports(stage, rates, *, seconds=400, start=1000):
    """Run a node with four ports; ``rates(t)`` gives the bytes each moved in the second before ``t``."""
    rng, sent, found = np.random.default_rng(9), np.zeros(4), []
    for t in range(start, start + seconds):
        sent += rates(t)
        nics = [
            {"nic.port.tx_bytes_total": int(x), "nic.port.speed_bits_per_second": 4e11, "nic.port.up": 1}
            for x in sent
        ]
        found += stage.process(sample(t, gpus=[healthy_gpu(rng, t) for _ in range(8)], nics=nics))
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
        found += stage.process(sample(t, host=host, nics=nics))
        found += stage.tick(t)
    assert found == []


def fleet(stage, alive, *, start=1000, seconds=100, nodes=20):
    found: list[Any] = []
    for t in range(start, start + seconds):
        for n in range(nodes):
            if alive(n, t):
                found += stage.process(sample(t, node=f"n{n:02}"))
        found += stage.tick(t)
    return found


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


def test_many_silent_nodes_are_one_telemetry_fault():
    """When a quarter of the fleet falls silent at once no node is accused."""
    found = fleet(NodeStage(), lambda n, t: n >= 5 or t < 1020 + n % 2 or t >= 1080)
    assert [(s.kind, s.state, s.subject.type) for s in found] == [
        ("self.telemetry_gap", "raise", "telemetry"),
        ("self.telemetry_gap", "clear", "telemetry"),
    ]


def test_ticking_more_often_changes_nothing():
    """Silence is judged by whole seconds of event time, whatever the rhythm of the ticks."""

    def go(rhythm):
        stage = NodeStage()
        found: list[Any] = []
        for t in range(1000, 1100):
            for n in range(10):
                if n != 3 or t < 1020:
                    found += stage.process(sample(t, node=f"n{n}"))
            for k in range(rhythm):
                found += stage.tick(t + k / rhythm)
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
