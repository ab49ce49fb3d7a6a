"""A collector as a contributor would write it: one file, and one line in ``registry.collectors``."""

from collections.abc import Mapping

from exporters.collector import Columns, Instant, Reading


class ToyCollector:
    """Gives one GPU the same values each tick."""

    name = "toy"

    def __init__(self, values: Columns) -> None:
        self._values = values
        self.columns: Mapping[str, str] = dict.fromkeys(values, "a toy")

    def collect(self, now: Instant) -> Reading:
        return Reading(gpu={"0": self._values})

    def metrics(self) -> Mapping[str, float]:
        return {"toy_ticks_total": 1.0}

    def close(self) -> None:
        pass
