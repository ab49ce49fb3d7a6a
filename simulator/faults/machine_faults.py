"""Faults of one machine: GPUs, internal links and host."""

from simulator.faults import effects as fx
from simulator.faults.kinds import CLOCK, STOPPED, STRAGGLER, FaultKind, Log

# NVML's bits in the clock event reasons.
HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x8, 0x20, 0x40, 0x80


def _xid(code: int, text: str, *, after: float = 0.05, every: float = 0.0) -> Log:
    return Log(
        f"xid.{code}",
        f"NVRM: Xid (PCI:{{pci}}): {code}, {text}",
        severity="critical" if code in (48, 79, 95) else "error",
        after=after,
        every=every,
    )


GPU_FAULTS: dict[str, FaultKind] = {
    "ecc_uncorrectable": FaultKind(
        # The page is retired at the next reset, so the remap stays pending until the repair.
        cause="memory",
        verdicts=("ecc.uncorrectable", "ecc.row_remap_pending", "ecc.row_remap_failure", *STOPPED),
        effects=(fx.process_exits, fx.remap(1)),
        logs=(
            _xid(48, "An uncorrectable double bit error (DBE) has been detected"),
            _xid(63, "Row Remapper: New row marked for remapping", after=0.3),
            _xid(94, "Contained ECC error", after=0.35),
        ),
        minutes=20,
    ),
    "hbm_degradation": FaultKind(
        # Often days before `ecc_uncorrectable`; corrected errors hardly cost time.
        cause="memory",
        verdicts=("ecc.correctable_rate", "ecc.row_remap_pending"),
        effects=(
            fx.errors_by_size("gpu.ecc.corrected_total"),
            fx.errors("gpu.row_remap.correctable_total", per_second=1 / 1800),
            fx.stretch_by(1.0),
        ),
        gating=False,
        size=(0.5, 50.0),
        unit="1/s",
        minutes=2000,
        shapes=("square",),
        period=(300.0, 3000.0),
        duty=(0.05, 0.5),
    ),
    "ecc_storm": FaultKind(
        # Up to the rate of a GPU that still passed its health check.
        cause="memory",
        verdicts=("ecc.correctable_rate",),
        effects=(fx.errors_by_size("gpu.ecc.corrected_total"), fx.stretch_by(1.0)),
        gating=False,
        size=(1.0, 20_000.0),
        unit="1/s",
        minutes=60,
    ),
    "gpu_lost": FaultKind(
        cause="gpu",
        verdicts=("xid.79", "gpu.missing", "node.silent", *STOPPED),
        effects=(fx.off_the_bus,),
        logs=(_xid(79, "GPU has fallen off the bus."),),
        minutes=40,
    ),
    "gpu_exec": FaultKind(
        cause="gpu",
        verdicts=("xid.13", "xid.109", "xid", *STOPPED),
        effects=(fx.process_exits,),
        logs=(_xid(109, "CTX SWITCH TIMEOUT"), _xid(45, "Ch 00000008, Preemptive Removal", after=0.6)),
        minutes=15,
    ),
    "gsp_hang": FaultKind(
        # The exporter reads in a child process, so that the node still reports.
        cause="gpu",
        verdicts=("xid.119", "xid.120", *STOPPED),
        effects=(fx.driver_stuck,),
        logs=(_xid(119, "Timeout waiting for RPC from GSP!", every=45.0),),
        size=(2.0, 10.0),
        unit="s",
        minutes=30,
    ),
    "nvlink_error": FaultKind(
        # Tensor-parallel ranks of the node use the link in every layer: all of them compute longer.
        cause="nvlink",
        verdicts=("link.nvlink_degraded", *STRAGGLER),
        effects=(
            fx.stretch_node,
            fx.errors("gpu.nvlink.crc_errors_total", per_second=400.0),
            fx.errors("gpu.nvlink.replay_errors_total", per_second=2.0),
        ),
        logs=(_xid(74, "NVLink: fatal error detected on link 4", every=90.0),),
        size=(1.02, 1.2),
        minutes=60,
        shapes=("step", "square"),
        period=(60.0, 600.0),
        duty=(0.2, 0.8),
    ),
    "thermal_throttle": FaultKind(
        # Clocks fall by 10 to 30 %, and heat takes minutes to build up.
        cause="clock",
        verdicts=(*STRAGGLER, *CLOCK),
        effects=(fx.slow_clock, fx.heat(22.0), fx.reasons(HW_SLOWDOWN | HW_THERMAL | SW_THERMAL)),
        size=(1.02, 1.35),
        minutes=10,
        shapes=("ramp",),
        period=(120.0, 300.0),
    ),
    "clock_lock": FaultKind(
        cause="clock", verdicts=(*STRAGGLER, *CLOCK), effects=(fx.slow_clock,), size=(1.05, 1.5)
    ),
    "silent_slow": FaultKind(cause="compute", verdicts=STRAGGLER, effects=(fx.stretch,), minutes=10),
    "pcie_downgrade": FaultKind(
        # Four lanes of sixteen carry a quarter of what the NIC could send; one, a sixteenth.
        cause="pcie",
        verdicts=(*STRAGGLER, "link.pcie_downgrade"),
        effects=(fx.narrow_bus, fx.slow_link, fx.errors("gpu.pcie.replay_total", per_second=0.4)),
        scope="nic",
        size=(4.0, 16.0),
    ),
}

HOST_FAULTS: dict[str, FaultKind] = {
    "power_brake": FaultKind(
        # Clocks of all GPUs fall by 15 to 50 %.
        cause="clock",
        verdicts=(*STRAGGLER, *CLOCK),
        effects=(fx.slow_clock, fx.reasons(HW_SLOWDOWN | POWER_BRAKE)),
        scope="node",
        size=(1.1, 1.5),
        minutes=60,
    ),
    "host_contention": FaultKind(
        # Bursts of a neighbour's work; 21.6 % longer steps were measured on shared clusters.
        cause="host",
        verdicts=(*STRAGGLER, "host.cpu_contention"),
        effects=(fx.stretch_node, fx.busy_host(0.65)),
        scope="node",
        size=(1.05, 2.0),
        minutes=10,
        shapes=("step", "square"),
        period=(20.0, 120.0),
        duty=(0.3, 0.9),
    ),
    "memory_overload": FaultKind(
        # Data workers starve as memory fills, and the kernel ends it by killing one.
        cause="host",
        verdicts=("host.memory_pressure", "host.cpu_contention", "data.loader_slow", *STRAGGLER),
        effects=(fx.full_memory, fx.slow_loader, fx.busy_host(0.2)),
        logs=(Log("host.oom_kill", "Out of memory: Killed process 4242 (pt_data_worker)", when="off"),),
        scope="node",
        size=(0.3, 6.0),
        unit="s",
        minutes=30,
        shapes=("ramp",),
        period=(120.0, 900.0),
    ),
    "loader_stall": FaultKind(
        cause="data",
        verdicts=(*STRAGGLER, "data.loader_slow"),
        effects=(fx.slow_loader,),
        scope="node",
        size=(0.1, 6.0),
        unit="s",
        minutes=20,
    ),
    "node_silent": FaultKind(
        cause="host",
        verdicts=("node.silent", "exporter.stale", *STOPPED),
        effects=(fx.crashed,),
        scope="node",
        minutes=30,
    ),
    "lemon_node": FaultKind(
        # A few minutes of slowness every few hours, too little for a repair.
        cause="lemon",
        verdicts=(
            "node.lemon", "ecc.correctable_rate", "link.pcie_replay", "straggler.intermittent",
            "straggler.fail_slow", "gray.node",
        ),
        effects=(
            fx.stretch,
            fx.errors("gpu.ecc.corrected_total", per_second=1.0),
            fx.errors("gpu.pcie.replay_total", per_second=1.0),
        ),
        size=(1.02, 1.15),
        shapes=("square",),
        period=(7200.0, 40_000.0),
        duty=(0.01, 0.05),
    ),
}  # fmt: skip
