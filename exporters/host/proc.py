"""The host as /proc shows it: CPU, run queue, memory, faults, pressure, TCP."""

from collections.abc import Mapping
from pathlib import Path

from exporters.collector import Columns, Instant, Reading
from exporters.host.kernel_files import parse_float, parse_int, read_text
from slowrank.telemetry.columns import Value

# guest and guest_nice, which follow, are counted in user and nice already (proc(5)).
_CPU_FIELDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
# The kB of /proc/meminfo are 1024 bytes.
_KIBIBYTE = 1024
_PRESSURES = ("cpu", "memory", "io")

# Files of /proc/net and the counters read there (proc_pid_net(5)): SNMP names to ours.
_TCP = {
    "snmp": {
        ("Tcp", "OutSegs"): "host.tcp.sent_segments_total",
        ("Tcp", "InSegs"): "host.tcp.received_segments_total",
        ("Tcp", "RetransSegs"): "host.tcp.retransmitted_segments_total",
    },
    "netstat": {("TcpExt", "TCPOFOQueue"): "host.tcp.out_of_order_segments_total"},
}

_LINUX, _PSI = "Linux", "a kernel with pressure stall information (psi=1)"
_COLUMNS = {
    "host.cpu.utilization_ratio": _LINUX,
    "host.cpu.iowait_ratio": _LINUX,
    "host.cpu.steal_ratio": _LINUX,
    "host.cpu_count": _LINUX,
    "host.run_queue": _LINUX,
    "host.context_switches_total": _LINUX,
    "host.load1": _LINUX,
    "host.memory.available_bytes": _LINUX,
    "host.memory.total_bytes": _LINUX,
    "host.oom_kills_total": _LINUX,
    "host.major_page_faults_total": _LINUX,
    **{f"host.pressure.{name}_some_ratio": _PSI for name in _PRESSURES},
    **{column: _LINUX for counters in _TCP.values() for column in counters.values()},
}


class HostCollector:
    """Read /proc once a tick; ratios are over the time since the last tick, so that the first has none."""

    name = "host"
    columns: Mapping[str, str] = _COLUMNS

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._cpu: dict[str, int] | None = None
        self._stall: dict[str, tuple[float, int]] = {}

    def collect(self, now: Instant) -> Reading:
        stat = _table(read_text(self._proc / "stat"))
        return Reading(
            host={
                **self._cpu_ratios(stat),
                **_kernel_counters(stat),
                **_load(read_text(self._proc / "loadavg")),
                **_memory(_table(read_text(self._proc / "meminfo"))),
                **_vm(_table(read_text(self._proc / "vmstat"))),
                **{f"host.pressure.{name}_some_ratio": self._pressure(name, now) for name in _PRESSURES},
                **self._tcp(),
            }
        )

    def metrics(self) -> Mapping[str, float]:
        return {}

    def close(self) -> None: ...

    def _cpu_ratios(self, stat: Mapping[str, list[str]]) -> Columns:
        ticks = [parse_int(text) for text in stat.get("cpu", [])[: len(_CPU_FIELDS)]]
        if len(ticks) < len(_CPU_FIELDS) or any(t is None for t in ticks):
            self._cpu = None
            return {}
        cpu = {name: t for name, t in zip(_CPU_FIELDS, ticks, strict=True) if t is not None}
        last, self._cpu = self._cpu, cpu
        if last is None:
            return {}
        # iowait may decrease (proc(5)); a negative share counts as zero.
        spent = {name: max(0, cpu[name] - last[name]) for name in _CPU_FIELDS}
        total = sum(spent.values())
        if total == 0:
            return {}
        return {
            "host.cpu.utilization_ratio": 1 - (spent["idle"] + spent["iowait"]) / total,
            "host.cpu.iowait_ratio": spent["iowait"] / total,
            "host.cpu.steal_ratio": spent["steal"] / total,
        }

    def _tcp(self) -> Columns:
        """Return the counters of the network namespace of this process."""
        found: dict[str, Value] = {}
        for file, counters in _TCP.items():
            held = _protocols(read_text(self._proc / "net" / file))
            found |= {column: held.get(name) for name, column in counters.items()}
        return found

    def _pressure(self, resource: str, now: Instant) -> Value:
        """Return the share of time since the last tick in which some task waited for ``resource``."""
        some = _table(read_text(self._proc / "pressure" / resource)).get("some", [])
        fields = dict(part.partition("=")[::2] for part in some)
        total = parse_int(fields.get("total"))
        # Removed unless it is read again: after a gap the interval is not known.
        last = self._stall.pop(resource, None)
        if total is None:
            return None
        self._stall[resource] = (now.monotonic, total)
        if last is None or now.monotonic <= last[0] or total < last[1]:
            return None
        # `total` counts microseconds; the file is read slightly after `now`, so that a share may exceed 1.
        return min(1.0, (total - last[1]) / 1e6 / (now.monotonic - last[0]))


def _table(text: str | None) -> dict[str, list[str]]:
    """Return lines of the form ``name value...`` by name."""
    lines = (line.split() for line in (text or "").splitlines())
    return {line[0].rstrip(":"): line[1:] for line in lines if line}


def _protocols(text: str | None) -> dict[tuple[str, str], int | None]:
    """Return the counters of pairs of lines, ``Tcp: NAME...`` and ``Tcp: VALUE...``, by protocol and name."""
    lines = [line.split() for line in (text or "").splitlines()]
    return {
        (names[0].rstrip(":"), name): parse_int(value)
        for names, values in zip(lines[::2], lines[1::2], strict=False)
        if names and values and names[0] == values[0]
        for name, value in zip(names[1:], values[1:], strict=False)
    }


def _first(table: Mapping[str, list[str]], name: str) -> int | None:
    values = table.get(name)
    return parse_int(values[0]) if values else None


def _kernel_counters(stat: Mapping[str, list[str]]) -> Columns:
    cpus = sum(1 for name in stat if name.startswith("cpu") and name != "cpu")
    return {
        "host.cpu_count": cpus or None,
        "host.run_queue": _first(stat, "procs_running"),
        "host.context_switches_total": _first(stat, "ctxt"),
    }


def _load(text: str | None) -> Columns:
    return {"host.load1": parse_float((text or "-").split()[0])}


def _memory(meminfo: Mapping[str, list[str]]) -> Columns:
    available, total = _first(meminfo, "MemAvailable"), _first(meminfo, "MemTotal")
    return {
        "host.memory.available_bytes": None if available is None else available * _KIBIBYTE,
        "host.memory.total_bytes": None if total is None else total * _KIBIBYTE,
    }


def _vm(vmstat: Mapping[str, list[str]]) -> Columns:
    return {
        "host.oom_kills_total": _first(vmstat, "oom_kill"),
        "host.major_page_faults_total": _first(vmstat, "pgmajfault"),
    }
