"""Table of the metrics that are searched for changes of level."""

from dataclasses import dataclass
from typing import Literal

from detectors.changepoint.standardise import Scale
from slowrank.telemetry.records import Family
from slowrank.telemetry.schema import Owner

POWER = "gpu.power_watts"

# Watts; power is watched as a share of the limit, of this one (H100 SXM) where the GPU's own is not read.
USUAL_POWER_LIMIT = 700.0


@dataclass(frozen=True, slots=True)
class Watched:
    """A watched metric: its scale, its bad direction, and the kind of finding that a change indicates.

    A change counts only when its worse side is beyond ``from_level`` (before a fall, after a rise): a
    temperature that rises from 40 to 50 °C or a port that was hardly used is no evidence.
    """

    owner: Owner
    metric: str
    unit: str
    scale: Scale
    bad: Literal[-1, 1]
    from_level: float
    family: Family
    kind: str
    weight: float


# ``from_level`` is in the metric's unit, noise floors are in that of the transformed reading: 2 % of the
# power limit, 3 % of a rate of bytes. All are chosen: levels where the metric matters to a job, floors of the
# readings' resolution and jitter. Weights are starting values, as in ``counter_rules``.
WATCHED = (
    Watched("gpu", "gpu.clock.sm_hz", "Hz", Scale("identity", 15e6), -1, 5e8, "clocks", "clock.low", 2.0),
    Watched("gpu", POWER, "W", Scale("identity", 0.02), -1, 100.0, "clocks", "straggler.fail_slow", 1.0),
    Watched(
        "gpu", "gpu.temp_celsius", "Cel", Scale("identity", 1.0), 1, 75.0, "clocks", "throttle.thermal", 1.0
    ),
    Watched(
        "gpu",
        "gpu.tensor_active_ratio",
        "1",
        Scale("identity", 0.02),
        -1,
        0.1,
        "clocks",
        "straggler.fail_slow",
        0.5,
    ),
    Watched(
        "nic", "nic.port.rx_bytes_total", "By/s", Scale("log1p", 0.03), -1, 1e8, "nic", "link.nic_slow", 1.5
    ),
    Watched(
        "nic", "nic.port.tx_bytes_total", "By/s", Scale("log1p", 0.03), -1, 1e8, "nic", "link.nic_slow", 1.5
    ),
    Watched(
        "host",
        "host.pressure.cpu_some_ratio",
        "1",
        Scale("identity", 0.05),
        1,
        0.2,
        "host",
        "host.cpu_contention",
        1.0,
    ),
    Watched(
        "host",
        "host.cpu.steal_ratio",
        "1",
        Scale("identity", 0.02),
        1,
        0.05,
        "host",
        "host.cpu_contention",
        1.0,
    ),
)


def metrics_of(owner: Owner) -> tuple[str, ...]:
    """Return the watched metrics of GPUs, NICs or the host, in the order of the table."""
    return tuple(w.metric for w in WATCHED if w.owner == owner)
