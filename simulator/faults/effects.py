"""Effects of faults: each changes one property of the hardware, and a fault has one or more of them.

Effects never set a reading. They change work, devices and links; ``devices`` and ``step_schedule`` derive the
rest.
"""

from collections.abc import Callable

import numpy as np

from simulator.faults.condition import CLOCK_EXPONENT, Condition, Dose, Extent

# Least shares of the healthy clock and bandwidth, so that steps end however many faults slow one place.
LOWEST_CLOCK = 0.1
LEAST_BANDWIDTH = 0.01

Effect = Callable[[Condition, Extent, Dose], None]


def slow_clock(c: Condition, at: Extent, dose: Dose) -> None:
    """Lower the SM clock until compute takes ``size`` times as long, to the lowest clock at most."""
    lowered = c.clock[at.nodes, at.gpus] * dose.factor ** (-1.0 / CLOCK_EXPONENT)
    c.clock[at.nodes, at.gpus] = np.maximum(lowered, LOWEST_CLOCK)


def stretch(c: Condition, at: Extent, dose: Dose) -> None:
    """Make compute take ``size`` times as long without any visible cause."""
    c.stretch[at.nodes, at.gpus] *= dose.factor


def stretch_node(c: Condition, at: Extent, dose: Dose) -> None:
    """Make compute of all GPUs of the node take ``size`` times as long."""
    c.stretch[at.nodes] *= dose.factor


def stretch_by(percent: float) -> Effect:
    """Return an effect that makes compute longer by a fixed share, whatever the fault's size."""

    def effect(c: Condition, at: Extent, dose: Dose) -> None:
        c.stretch[at.nodes, at.gpus] *= 1.0 + 0.01 * percent * dose.severity

    return effect


def heat(celsius: float) -> Effect:
    """Return an effect that raises the temperature."""

    def effect(c: Condition, at: Extent, dose: Dose) -> None:
        c.heat[at.nodes, at.gpus] += celsius * dose.severity

    return effect


def reasons(bits: int) -> Effect:
    """Return an effect that sets bits of the driver's clock event reasons."""

    def effect(c: Condition, at: Extent, dose: Dose) -> None:
        c.throttle[at.nodes, at.gpus] |= bits

    return effect


def errors(counter: str, *, per_second: float) -> Effect:
    """Return an effect that counts errors at a fixed rate."""

    def effect(c: Condition, at: Extent, dose: Dose) -> None:
        c.add_errors(counter, at, per_second * dose.severity)

    return effect


def errors_by_size(counter: str) -> Effect:
    """Return an effect that counts ``size`` errors a second."""

    def effect(c: Condition, at: Extent, dose: Dose) -> None:
        c.add_errors(counter, at, dose.size * dose.severity)

    return effect


def slow_link(c: Condition, at: Extent, dose: Dose) -> None:
    """Divide the bandwidth out of the node by ``size``, to the least bandwidth at most."""
    c.link[at.nodes, at.nics] = np.maximum(c.link[at.nodes, at.nics] / max(1.0, dose.factor), LEAST_BANDWIDTH)


def link_down(c: Condition, at: Extent, dose: Dose) -> None:
    """Take the link down until the fault is off again."""
    c.link_back[at.nodes, at.nics] = dose.remaining


def link_dead(c: Condition, at: Extent, dose: Dose) -> None:
    """Take the link down until the repair, longer than any collective waits."""
    c.link_back[at.nodes, at.nics] = np.inf


def narrow_bus(c: Condition, at: Extent, dose: Dose) -> None:
    """Train the PCIe link down to four of its sixteen lanes."""
    c.pcie_width[at.nodes, at.gpus] = 4.0


def off_the_bus(c: Condition, at: Extent, dose: Dose) -> None:
    """Remove the GPU and end its process."""
    c.present[at.nodes, at.gpus] = False
    c.exited[at.nodes, at.gpus] = True


def process_exits(c: Condition, at: Extent, dose: Dose) -> None:
    """End the process on the GPU."""
    c.exited[at.nodes, at.gpus] = True


def stands_still(c: Condition, at: Extent, dose: Dose) -> None:
    """Let the process on the GPU stand still, neither computing nor spinning."""
    c.hung[at.nodes, at.gpus] = True


def driver_stuck(c: Condition, at: Extent, dose: Dose) -> None:
    """Let reads of the GPU block for ``size`` seconds and repeat the last values."""
    c.hung[at.nodes, at.gpus] = True
    c.frozen[at.nodes, at.gpus] = True
    c.read_seconds[at.nodes, at.gpus] = dose.size


def remap(bit: int) -> Effect:
    """Return an effect that sets a row-remap flag: 1 pending, 2 failed."""

    def effect(c: Condition, at: Extent, dose: Dose) -> None:
        c.remap[at.nodes, at.gpus] |= bit

    return effect


def busy_host(share: float) -> Effect:
    """Return an effect that keeps a share of the host's processors busy."""

    def effect(c: Condition, at: Extent, dose: Dose) -> None:
        c.cpu[at.nodes] += share * dose.severity

    return effect


def full_memory(c: Condition, at: Extent, dose: Dose) -> None:
    """Fill the host's memory as the fault develops."""
    c.memory[at.nodes] = np.maximum(c.memory[at.nodes], dose.severity)


def slow_loader(c: Condition, at: Extent, dose: Dose) -> None:
    """Let every step wait ``size`` seconds for its data, while the host waits for its disks."""
    c.loader[at.nodes] += dose.size * dose.severity
    c.iowait[at.nodes] += 0.3 * dose.severity


def slow_storage(c: Condition, at: Extent, dose: Dose) -> None:
    """Let reads and checkpoints wait ``size`` seconds for the file system."""
    c.loader[at.nodes] += dose.size * dose.severity
    c.storage[at.nodes] += 4.0 * dose.size * dose.severity
    c.iowait[at.nodes] += 0.2 * dose.severity


def silent(c: Condition, at: Extent, dose: Dose) -> None:
    """Stop the exporter; the node continues to work."""
    c.reporting[at.nodes] = False


def crashed(c: Condition, at: Extent, dose: Dose) -> None:
    """Stop the whole node, exporter and processes."""
    c.reporting[at.nodes] = False
    c.exited[at.nodes] = True


def cut_off(c: Condition, at: Extent, dose: Dose) -> None:
    """Take down all links of the nodes, which carry the telemetry as well."""
    c.link_back[at.nodes] = np.inf
    c.reporting[at.nodes] = False


def stuck_exporter(c: Condition, at: Extent, dose: Dose) -> None:
    """Let the exporter repeat its last readings under new times."""
    c.stuck[at.nodes] = True


def wrong_clock(c: Condition, at: Extent, dose: Dose) -> None:
    """Set the node's clock ``size`` seconds ahead."""
    c.skew[at.nodes] += dose.size


def nothing(c: Condition, at: Extent, dose: Dose) -> None:
    """Change nothing about the hardware: the fault is in the loss, the delivery or a counter."""
