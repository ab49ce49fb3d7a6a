"""InfiniBand and RoCE ports as /sys/class/infiniband shows them, one instance per ``device/port``."""

import re
from collections.abc import Mapping
from pathlib import Path

from exporters.collector import NOTHING, Columns, Instant, Reading
from exporters.host.device_threads import DeviceThreads
from exporters.host.kernel_files import names_in, parse_float, parse_int, read_int, read_text
from exporters.host.seldom import Seldom
from slowrank.telemetry.columns import Value

# Unit of the ``port_*_data`` counters (InfiniBand specification: 32-bit words).
_WORD_BYTES = 4

_WORDS = {
    "nic.port.rx_bytes_total": "counters/port_rcv_data",
    "nic.port.tx_bytes_total": "counters/port_xmit_data",
}
_COUNTS = {
    "nic.port.rx_packets_total": "counters/port_rcv_packets",
    "nic.port.tx_packets_total": "counters/port_xmit_packets",
    "nic.port.rx_errors_total": "counters/port_rcv_errors",
    "nic.port.rx_dropped_total": "counters/port_rcv_discards",
    "nic.port.link_downed_total": "counters/link_downed",
    "nic.port.link_error_recovery_total": "counters/link_error_recovery",
    "nic.port.symbol_errors_total": "counters/symbol_error",
    "nic.port.xmit_discards_total": "counters/port_xmit_discards",
    "nic.port.xmit_wait_ticks_total": "counters/port_xmit_wait",
    "nic.port.out_of_sequence_total": "hw_counters/out_of_sequence",
    "nic.port.local_ack_timeout_total": "hw_counters/local_ack_timeout_err",
    "nic.port.roce_slow_restart_total": "hw_counters/roce_slow_restart",
    "nic.port.cnp_handled_total": "hw_counters/rp_cnp_handled",
    "nic.port.rnr_nak_retry_errors_total": "hw_counters/rnr_nak_retry_err",
    "nic.port.local_link_integrity_errors_total": "counters/local_link_integrity_errors",
    "nic.port.excessive_buffer_overrun_errors_total": "counters/excessive_buffer_overrun_errors",
}
# As in "400 Gb/sec (4X NDR)".
_RATE = re.compile(r"([0-9.]+)\s*Gb/sec")

# The port state ``4: ACTIVE``.
_ACTIVE = 4


class InfinibandCollector:
    """Read every port of every device; one that is unreadable, or hangs, loses only its own values."""

    name = "infiniband"
    columns: Mapping[str, str] = dict.fromkeys(
        ("nic.port.up", "nic.port.speed_bits_per_second", *_WORDS, *_COUNTS), "an InfiniBand or RoCE adapter"
    )

    def __init__(self, root: Path = Path("/sys/class/infiniband")) -> None:
        self._root = root
        self._threads = DeviceThreads(self.name, self._read)
        self._seldom = Seldom()

    def collect(self, now: Instant) -> Reading:
        ports = [
            f"{device}/{port}"
            for device in names_in(self._root)
            for port in names_in(self._root / device / "ports")
        ]
        read = self._seldom.thin(self._threads.collect(ports), now.monotonic)
        return Reading(nic={**dict.fromkeys(ports, NOTHING), **read})

    def metrics(self) -> Mapping[str, float]:
        return {"infiniband_ports_blocked": self._threads.blocked}

    def close(self) -> None:
        self._threads.close()

    def _read(self, name: str) -> Columns:
        device, _, port = name.partition("/")
        return _port(self._root / device / "ports" / port)


def _port(folder: Path) -> Columns:
    return {
        "nic.port.up": _up(folder),
        "nic.port.speed_bits_per_second": _speed(read_text(folder / "rate")),
        **{column: _words(read_int(folder / file)) for column, file in _WORDS.items()},
        **{column: read_int(folder / file) for column, file in _COUNTS.items()},
    }


def _up(folder: Path) -> Value:
    state = parse_int((read_text(folder / "state") or "").partition(":")[0])
    return None if state is None else int(state == _ACTIVE)


def _speed(rate: str | None) -> Value:
    found = _RATE.match(rate or "")
    gigabits = parse_float(found[1]) if found else None
    return None if gigabits is None else gigabits * 1e9


def _words(count: int | None) -> Value:
    # The product must fit its int64 column.
    if count is None or count >= 2**63 // _WORD_BYTES:
        return None
    return count * _WORD_BYTES
