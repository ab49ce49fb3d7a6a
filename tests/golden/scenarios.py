"""Small simulated clusters whose findings are kept as expected files, and their way through the pipeline."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from simulator import Cluster, ClusterSpec, Fault, JobSpec, Planned, Workload
from slowrank.telemetry import NodeEvent, Record
from slowrank.telemetry.rows import json_rows
from streams.files.replay import as_ndjson, final_versions, findings_of
from streams.pipeline import local_pipeline

START = ClusterSpec().start


def findings(name: str) -> bytes:
    """Return the findings of a scenario in their final versions, as ``slowrank backtest`` writes them."""
    records = sorted(SCENARIOS[name](), key=lambda record: record.ts)
    pipeline = local_pipeline()
    found = as_ndjson(final_versions(findings_of(records, pipeline)))
    assert not pipeline.set_aside
    return found


def slow_machines() -> Iterator[Record]:
    """Four jobs of different layout; in each a machine slows down for another reason."""
    jobs = (
        JobSpec(dp=4, tp=4, job_id="tp", step_seconds=1.2),
        JobSpec(dp=2, pp=4, tp=2, job_id="pp", first_node=4, workload=Workload(last_stage=1.65)),
        JobSpec(dp=8, ep=4, job_id="ep", first_node=8, step_seconds=0.9),
        JobSpec(dp=16, job_id="dp", first_node=10, workload=Workload(packing_cv=0.1)),
    )
    faults = (
        _fault("thermal_throttle", 1, 2, onset=70, shape="ramp", period=15.0),
        _fault("nvlink_error", 3, 1, onset=120, magnitude=1.2),
        _fault("memory_overload", 5, onset=60, magnitude=4.0, duration=100.0),
        _fault("loader_stall", 8, onset=80, magnitude=1.5),
        _fault("pcie_downgrade", 9, 2, onset=150, magnitude=16.0),
        _fault("silent_slow", 11, 3, onset=90, magnitude=1.5),
        _fault("ecc_storm", 13, 0, onset=60, magnitude=900.0),
    )
    return _run(14, jobs, faults, seconds=240.0)


def comes_and_goes() -> Iterator[Record]:
    """Slowness that ends and comes back, one that is on and off, and a planned change, over some minutes."""
    jobs = (
        JobSpec(dp=2, tp=4, job_id="again", step_seconds=2.0),
        JobSpec(dp=2, tp=4, job_id="on-and-off", first_node=2, step_seconds=2.0),
        JobSpec(
            dp=2,
            tp=4,
            job_id="planned",
            first_node=4,
            step_seconds=2.0,
            workload=Workload(planned=(Planned(onset=400.0, factor=1.3),), announced=True),
        ),
    )
    faults = (
        *(_fault("silent_slow", 1, 1, onset=100.0 + 400 * i, duration=100.0, magnitude=1.4) for i in (0, 1)),
        _fault("silent_slow", 2, 3, onset=150, magnitude=1.4, shape="square", period=20.0, duty=0.2),
        _fault("power_brake", 5, onset=600, duration=100.0, magnitude=1.4),
    )
    return _run(6, jobs, faults, seconds=800.0, send_seconds=15.0)


def stopped_jobs() -> Iterator[Record]:
    """Jobs that stop, each for another reason, and start anew or not."""
    usual = JobSpec(dp=2, tp=4, step_seconds=1.2, timeout_seconds=90.0, restart_seconds=30.0)
    jobs = [replace(usual, job_id=f"job-{i}", first_node=2 * i) for i in range(7)]
    faults = (
        _fault("gpu_lost", 1, 3, onset=90),
        _fault("node_silent", 3, onset=90, duration=70.0),
        _fault("job_hang", 4, 0, onset=100),
        _fault("app_crash", 6, onset=100, duration=40.0),
        _fault("nic_crash", 9, 1, onset=90),
        _fault("gsp_hang", 10, 2, onset=90, duration=60.0),
        _fault("ecc_uncorrectable", 13, 1, onset=90, duration=50.0),
    )
    return _run(14, jobs, faults, seconds=240.0)


def network() -> Iterator[Record]:
    """A rail, single ports and a whole fabric that are slow or flap."""
    job = JobSpec(dp=12, step_seconds=1.2, workload=Workload(comm_seconds=0.3))
    jobs = [replace(job, job_id=f"job-{i}", first_node=3 * i) for i in range(4)]
    faults = (
        _fault("congestion", 1, onset=90, duration=90.0, magnitude=8.0),
        _fault("nic_slow", 4, 1, onset=80, magnitude=4.0),
        _fault("nic_flap", 7, 0, onset=80, duration=60.0, shape="square", period=12.0, duty=0.1),
        _fault("link_errors", 10, 2, onset=80, magnitude=3.0),
        _fault("storage_stall", 9, onset=150, magnitude=5.0),
    )
    return _run(12, jobs, faults, seconds=240.0)


def telemetry() -> Iterator[Record]:
    """Wrong clocks, stuck exporters, a dark switch and losses that are no numbers."""
    jobs = (JobSpec(dp=8, tp=4), JobSpec(dp=8, tp=4, job_id="nan", first_node=8))
    faults = (
        _fault("clock_skew", 1, onset=60, magnitude=10.0),
        _fault("exporter_gap", 3, onset=70, duration=60.0),
        _fault("frozen_exporter", 5, onset=70),
        _fault("nan_loss", 9, onset=80),
        _fault("switch_down", 13, onset=150),
    )
    return _run(16, jobs, faults, seconds=240.0)


def events() -> Iterator[Record]:
    """The log of nodes alone: fatal and repeated XIDs, links, processes that hang, and a slow start."""
    told = [
        *(_xid(20.0, "a", gpu, code) for gpu, code in enumerate((31, 48, 62, 63, 64, 79, 94, 999))),
        *(_xid(60.0 * i, "b", 0, 13) for i in range(4)),
        *(_xid(120.0 * i, "b", 1, 74) for i in range(2)),
        *(_xid(4000.0 * i, "c", 3, code) for i, code in enumerate((79, 48, 95, 119, 79))),
        _xid(30.0, "d", 1, 154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"),
        _xid(90.0, "d", 1, 154, "GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)"),
        _event(40.0, "e", "nvswitch.sxid", "SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30"),
        _event(41.0, "f", "pcie.aer", "AER: Uncorrectable (Fatal) error", gpu_index=1),
        _event(42.0, "f", "pcie.aer", "AER: Uncorrectable (Non-Fatal) error", gpu_index=2),
        *(_event(43.0 + i, "g", "pcie.aer", "AER: Corrected error", gpu_index=3) for i in range(40)),
        *(_event(50.0 + 60 * i, "g", "nic.link_down", nic="mlx5_1", port="1") for i in range(3)),
        _event(44.0, "h", "host.hung_task", "INFO: task nv_queue:77 blocked for more than 120 seconds."),
        *(
            _event(ts, node, f"startup.{phase}", job_id="j", gpus=4, milliseconds=seconds * 1000)
            for node in "abcdefgh"
            for ts, phase, seconds in (
                (100.0, "image", 30),
                *(((500.0, "environment", 400),) if node == "d" else ((150.0, "environment", 50),)),
                (520.0, "first_step", 10),
            )
        ),
    ]
    # Event time goes on between them and after the last one.
    told += [_event(ts, "a", "node.note") for ts in (*range(0, 900, 10), *range(20_000, 20_300, 10))]
    return iter(told)


def readings() -> Iterator[Record]:
    """States and counters that no fault of the simulator sets, set by hand in a healthy job."""
    job = JobSpec(dp=4, tp=4, step_seconds=1.6)
    assembler = json_rows.Assembler()
    for record in _run(4, [job], (), seconds=200.0):
        for row in json_rows.rows(record):
            key = row["node"], row.get("metric"), row.get("instance")
            if key in SET_BY_HAND and row["ts"] >= START + 80:
                row["value"] = SET_BY_HAND[key](row["ts"] - START - 80)
            yield from assembler.add(row)
    yield from assembler.flush()


# Values by (node, metric, instance), of the seconds since they are set.
SET_BY_HAND: dict[tuple[str, str, str], Callable[[float], float]] = {
    ("sim-0000", "gpu.row_remap.failed", "0"): lambda t: 1,
    ("sim-0000", "gpu.row_remap.pending", "1"): lambda t: 1,
    ("sim-0000", "gpu.recovery_action", "2"): lambda t: 2,
    ("sim-0000", "gpu.energy_millijoules_total", "3"): lambda t: 1e6,
    ("sim-0001", "gpu.throttle_reasons", "0"): lambda t: 8,
    ("sim-0001", "gpu.temp.margin_celsius", "1"): lambda t: -1,
    ("sim-0001", "gpu.pcie.link_gen", "2"): lambda t: 3,
    ("sim-0001", "gpu.pcie.replay_total", "3"): lambda t: 20 * int(t),
    ("sim-0002", "host.pressure.cpu_some_ratio", ""): lambda t: 0.9,
    ("sim-0002", "gpu.nvml_call_seconds", "0"): lambda t: 0.8,
    ("sim-0002", "host.oom_kills_total", ""): lambda t: t // 20,
    ("sim-0003", "nic.port.speed_bits_per_second", "mlx5_0/1"): lambda t: 1e11,
    ("sim-0003", "nic.port.symbol_errors_total", "mlx5_1/1"): lambda t: 300 * int(t),
    ("sim-0003", "gpu.nvlink.crc_errors_total", "2"): lambda t: 500 * int(t),
}

SCENARIOS: dict[str, Callable[[], Iterator[Record]]] = {
    scenario.__name__: scenario
    for scenario in (slow_machines, comes_and_goes, stopped_jobs, network, telemetry, events, readings)
}


def _fault(kind: str, node: int, gpu: int | None = None, *, onset: float, **changes: Any) -> Fault:
    return Fault(kind=kind, node=node, gpu=gpu, onset=onset, **changes)


def _run(
    nodes: int,
    jobs: Iterable[JobSpec],
    faults: Iterable[Fault],
    *,
    seconds: float,
    send_seconds: float = 4.0,
) -> Iterator[Record]:
    spec = ClusterSpec(
        nodes=nodes, gpus=4, nics=4, jobs=tuple(jobs), send_seconds=send_seconds, nodes_per_switch=8
    )
    return Cluster(spec, seed=17, faults=faults).run(seconds)


def _event(ts: float, node: str, code: str, message: str = "", **subject: str | int) -> NodeEvent:
    return NodeEvent(
        cluster="sim", node=node, ts=START + ts, source="kmsg", code=code, subject=subject, message=message
    )


def _xid(ts: float, node: str, gpu: int, code: int, text: str = "of a test") -> NodeEvent:
    return _event(ts, node, f"xid.{code}", f"NVRM: Xid (PCI:0000:1b:00): {code}, {text}", gpu_index=gpu)
