"""Network interfaces as /sys/class/net shows them: state, speed, traffic, errors, carrier changes."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from exporters.collector import NOTHING, Columns, Instant, Reading
from exporters.host.device_threads import DeviceThreads
from exporters.host.kernel_files import names_in, read_int, read_text
from exporters.host.seldom import Seldom
from slowrank.foreign.series import PHYSICAL_INTERFACE
from slowrank.telemetry.columns import Value

_STATISTICS = {
    "nic.port.rx_bytes_total": "rx_bytes",
    "nic.port.tx_bytes_total": "tx_bytes",
    "nic.port.rx_packets_total": "rx_packets",
    "nic.port.tx_packets_total": "tx_packets",
    "nic.port.rx_errors_total": "rx_errors",
    "nic.port.tx_errors_total": "tx_errors",
    "nic.port.rx_dropped_total": "rx_dropped",
    "nic.port.tx_dropped_total": "tx_dropped",
}
_STATES = (
    "nic.port.up",
    "nic.port.speed_bits_per_second",
    "nic.port.carrier_changes_total",
    "nic.port.link_downed_total",
)


class NetCollector:
    """Read the physical interfaces, one instance each; one that hangs loses only its own values."""

    name = "nic"
    columns: Mapping[str, str] = dict.fromkeys((*_STATES, *_STATISTICS), "a physical network interface")

    def __init__(self, root: Path = Path("/sys/class/net")) -> None:
        self._root = root
        self._threads = DeviceThreads(self.name, lambda name: _interface(root / name))
        self._seldom = Seldom()

    def collect(self, now: Instant) -> Reading:
        names = [name for name in names_in(self._root) if self._is_physical(name)]
        read = self._seldom.thin(self._threads.collect(names), now.monotonic)
        return Reading(nic={**dict.fromkeys(names, NOTHING), **read})

    def metrics(self) -> Mapping[str, float]:
        return {"nics_blocked": self._threads.blocked}

    def close(self) -> None:
        self._threads.close()

    def _is_physical(self, name: str) -> bool:
        return (self._root / name / "device").exists() or PHYSICAL_INTERFACE.fullmatch(name) is not None


def pci_devices(
    roots: Sequence[Path] = (Path("/sys/class/net"), Path("/sys/class/infiniband")),
) -> dict[str, str]:
    """Return the names of the network devices by PCI address (``0000:18:00.1``).

    An InfiniBand port has the name of its counters, which is that in the last root.
    """
    links = ((name, root / name / "device") for root in roots for name in names_in(root))
    return {link.resolve().name.lower(): name for name, link in links if link.exists()}


def _interface(folder: Path) -> Columns:
    return {
        "nic.port.up": _up(folder),
        "nic.port.speed_bits_per_second": _speed(folder),
        "nic.port.carrier_changes_total": read_int(folder / "carrier_changes"),
        "nic.port.link_downed_total": read_int(folder / "carrier_down_count"),
        **{column: read_int(folder / "statistics" / file) for column, file in _STATISTICS.items()},
    }


def _up(folder: Path) -> Value:
    state = read_text(folder / "operstate")
    if state in ("up", "down", "lowerlayerdown", "dormant", "notpresent"):
        return 1 if state == "up" else 0
    # Some drivers only report "unknown"; the carrier is the second choice, unreadable while the link is down.
    return read_int(folder / "carrier")


def _speed(folder: Path) -> Value:
    """Return bits per second; the file is unreadable while the link is down, and -1 where it is unknown."""
    megabits = read_int(folder / "speed")
    return megabits * 1_000_000 if megabits is not None and megabits > 0 else None
