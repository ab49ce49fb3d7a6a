"""The time of the node's boot, as one event at the start of the exporter: a reboot ends some findings."""

from collections.abc import Mapping
from pathlib import Path

from exporters.collector import Event, Instant, Reading
from exporters.host.kernel_files import parse_int, read_text

CODES = ("host.boot",)


class BootCollector:
    """One event, from the line ``btime`` of /proc/stat (Unix seconds), as soon as it can be read."""

    name = "boot"
    columns: Mapping[str, str] = {}

    def __init__(self, root: Path = Path("/proc")) -> None:
        self._stat = root / "stat"
        self._sent = False

    def collect(self, now: Instant) -> Reading:
        lines = () if self._sent else (read_text(self._stat) or "").splitlines()
        times = (parse_int(line.removeprefix("btime ")) for line in lines if line.startswith("btime "))
        booted = next((at for at in times if at is not None and 0 < at <= now.wall), None)
        if booted is None:
            return Reading()
        self._sent = True
        event = Event(
            ts=now.wall,
            source="boot",
            code=CODES[0],
            severity="info",
            subject={"booted": booted},
            message=f"the node has been up for {now.wall - booted:.0f} s",
        )
        return Reading(events=(event,))

    def metrics(self) -> Mapping[str, float]:
        return {}

    def close(self) -> None: ...
