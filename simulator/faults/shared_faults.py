"""Faults of several machines or none: network, job and telemetry."""

from functools import partial

from simulator.faults import effects as fx
from simulator.faults.kinds import JOB_WIDE, STOPPED, STRAGGLER, FaultKind, Log

NETWORK_FAULTS: dict[str, FaultKind] = {
    "nic_crash": FaultKind(
        cause="nic",
        verdicts=("link.nic_flap", "link.nic_errors", *STOPPED),
        effects=(fx.link_dead,),
        logs=(
            Log("nic.link_down", "mlx5_core {nic}: Port: 1 Link DOWN"),
            Log("nic.link_up", "mlx5_core {nic}: Port: 1 Link ACTIVE", "info", when="off"),
        ),
        scope="nic",
        minutes=30,
    ),
    "nic_flap": FaultKind(
        # Down for one to three seconds, up for some: gauges read every 15 s show nothing.
        cause="link",
        verdicts=("link.nic_flap", "link.nic_errors", *STRAGGLER),
        effects=(fx.link_down,),
        logs=(
            Log("nic.link_down", "mlx5_core {nic}: Port: 1 Link DOWN", after=0.0),
            Log("nic.link_up", "mlx5_core {nic}: Port: 1 Link ACTIVE", "info", when="off", after=0.0),
        ),
        scope="nic",
        minutes=2,
        sigma=0.5,
        shapes=("square",),
        period=(6.0, 33.0),
        duty=(0.05, 0.1),
    ),
    "link_errors": FaultKind(
        # A loss of 1e-5 to 1e-2 causes retransmissions, modelled as lost bandwidth.
        cause="link",
        verdicts=("link.nic_errors", "link.nic_slow", *STRAGGLER),
        effects=(
            fx.slow_link,
            fx.errors("nic.port.symbol_errors_total", per_second=40.0),
            fx.errors("nic.port.rx_errors_total", per_second=25.0),
            fx.errors("nic.port.out_of_sequence_total", per_second=60.0),
            fx.errors("nic.port.local_ack_timeout_total", per_second=3.0),
        ),
        scope="nic",
        size=(1.02, 4.0),
        minutes=240,
        shapes=("ramp", "step"),
        period=(600.0, 7200.0),
    ),
    "nic_slow": FaultKind(
        cause="nic",
        verdicts=(*STRAGGLER, "link.nic_slow", "link.nic_errors"),
        effects=(fx.slow_link, fx.errors("nic.port.roce_slow_restart_total", per_second=2.0)),
        scope="nic",
        size=(1.5, 4.0),
    ),
    "rail_degraded": FaultKind(
        cause="fabric",
        verdicts=("fabric.rail_degraded", "link.nic_errors", "link.nic_slow", "straggler.job_wide"),
        effects=(fx.slow_link, fx.errors("nic.port.symbol_errors_total", per_second=30.0)),
        scope="rail",
        size=(1.5, 8.0),
        minutes=60,
    ),
    "congestion": FaultKind(
        # Measured: rates fell by 28 to 46 %, and by 85 % where episodes overlapped. The notifications a
        # second are an assumption, 400 times the detector's floor of 10; the detector fires at ten times the
        # floor.
        cause="congestion",
        verdicts=JOB_WIDE,
        hypotheses=("congestion",),
        effects=(
            fx.slow_link,
            fx.errors("nic.port.cnp_handled_total", per_second=4000.0),
            fx.errors("nic.port.xmit_discards_total", per_second=20.0),
        ),
        scope="job",
        machine=False,
        size=(1.3, 12.0),
        minutes=24,
        shapes=("step", "ladder"),
        period=(20.0, 120.0),
    ),
    "switch_down": FaultKind(
        # The telemetry of the nodes uses the same switch.
        cause="fabric",
        verdicts=("fabric.rail_degraded", "node.silent", "exporter.stale", *STOPPED),
        effects=(fx.cut_off,),
        scope="switch",
        minutes=15,
    ),
    "storage_stall": FaultKind(
        # A checkpoint moves more than a read of a batch, and waits longer.
        cause="data",
        verdicts=(*JOB_WIDE, "data.loader_slow"),
        hypotheses=("data", "storage", "imbalance.data"),
        effects=(fx.slow_storage,),
        scope="job",
        machine=False,
        size=(0.3, 20.0),
        unit="s",
        minutes=15,
        shapes=("step", "square"),
        period=(30.0, 300.0),
    ),
}

_loss = partial(
    FaultKind,
    cause="loss",
    verdicts=("training.loss_anomaly",),
    hypotheses=("loss",),
    effects=(fx.nothing,),
    scope="job",
    machine=False,
    gating=False,
)

JOB_FAULTS: dict[str, FaultKind] = {
    "job_hang": FaultKind(
        cause="hang", verdicts=STOPPED, effects=(fx.stands_still,), machine=False, minutes=40
    ),
    "app_crash": FaultKind(
        cause="software",
        verdicts=STOPPED,
        effects=(fx.process_exits,),
        scope="job",
        machine=False,
        minutes=8,
    ),
    "nan_loss": _loss(minutes=10),
    "loss_spike": _loss(size=(5.0, 50.0), minutes=2, shapes=("step", "ramp"), period=(30.0, 120.0)),
}

# Without verdicts: a counter that restarts and records that arrive twice need no finding.
TELEMETRY_FAULTS: dict[str, FaultKind] = {
    kind: FaultKind(
        cause="telemetry",
        verdicts=verdicts,
        effects=(effect,),
        scope="node",
        machine=False,
        gating=False,
        size=size,
        unit="s",
        minutes=minutes,
    )
    for kind, effect, verdicts, size, minutes in (
        ("exporter_gap", fx.silent, ("exporter.stale",), (1.0, 1.0), 10),
        ("clock_skew", fx.wrong_clock, ("host.clock_skew",), (0.6, 60.0), 600),
        ("frozen_exporter", fx.stuck_exporter, ("exporter.stale", "xid.119"), (1.0, 1.0), 20),
        ("counter_reset", fx.nothing, (), (1.0, 1.0), 1),
        ("late_batch", fx.nothing, ("exporter.stale",), (3.0, 90.0), 5),
        ("duplicate_batch", fx.nothing, (), (1.0, 20.0), 5),
    )
}
