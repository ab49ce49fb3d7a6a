"""When the node booted, said once by every exporter that starts: what a reboot repairs is over then."""

from collections.abc import Callable, Mapping

from exporters.collector import Event, Instant, Reading

CODES = ("host.boot",)


class BootCollector:
    """One event at the first tick; ``boot_clock`` reads seconds since boot."""

    name = "boot"
    columns: Mapping[str, str] = {}

    def __init__(self, boot_clock: Callable[[], float]) -> None:
        self._boot_clock = boot_clock
        self._said = False

    def collect(self, now: Instant) -> Reading:
        if self._said:
            return Reading()
        self._said = True
        seconds = self._boot_clock()
        event = Event(
            ts=now.wall,
            source="boot",
            code=CODES[0],
            severity="info",
            subject={"booted": int(now.wall - seconds)},
            message=f"the node has been up for {seconds:.0f} s",
        )
        return Reading(events=(event,))

    def metrics(self) -> Mapping[str, float]:
        return {}

    def close(self) -> None: ...
