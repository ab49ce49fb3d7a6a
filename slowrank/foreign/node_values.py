"""All series of one node and moment as columns, with the state that rates and XIDs need."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from slowrank.foreign.rules import Rule
from slowrank.foreign.series import Point
from slowrank.telemetry.columns import Value
from slowrank.telemetry.hardware.xids import xid
from slowrank.telemetry.schema import CURRENT_SAMPLE_SCHEMA, SAMPLE_SCHEMAS, Owner

_SCHEMA = SAMPLE_SCHEMAS[CURRENT_SAMPLE_SCHEMA]
_WHOLE = {
    column.name
    for block in (_SCHEMA.gpu, _SCHEMA.nic, _SCHEMA.host)
    for column in block.columns
    if column.dtype == "<i8"
}
_INT64 = 2**63
# A larger number becomes infinity in a 32-bit column.
_FLOAT32_MAX = 3.4e38

# Seconds for which equal values of all GPUs count as not read again, so that their counters are missing.
# After that the source itself is frozen. Chosen: three of dcgm-exporter's default intervals of 30 s.
UNCHANGED_SECONDS = 90.0

Device = dict[str, Value]


@dataclass(frozen=True, slots=True)
class Xid:
    """The last XID of a GPU changed to ``number``; how many there were in between is unknown."""

    gpu: str
    number: int

    @property
    def code(self) -> str:
        """The code of the event."""
        return f"xid.{self.number}"

    @property
    def severity(self) -> Literal["critical", "error", "warning"]:
        """The severity of the event: at most a warning where an application may have caused it."""
        grade = xid(self.number).grade
        return grade if grade in ("critical", "error", "warning") else "warning"

    @property
    def subject(self) -> dict[str, str | int]:
        """The subject of the event."""
        gpu: dict[str, str | int] = (
            {"gpu_index": int(self.gpu)} if self.gpu.isdigit() else {"gpu_uuid": self.gpu}
        )
        return {**gpu, "xid": self.number}


@dataclass(slots=True)
class Values:
    """Columns by device, and the XIDs that are new."""

    gpu: dict[str, Device] = field(default_factory=dict)
    nic: dict[str, Device] = field(default_factory=dict)
    host: Device = field(default_factory=dict)
    xids: list[Xid] = field(default_factory=list)

    def device(self, owner: Owner, name: str) -> Device:
        """Return the columns of one device, new ones if it has none yet."""
        if owner == "host":
            return self.host
        return (self.gpu if owner == "gpu" else self.nic).setdefault(name, {})


@dataclass(slots=True)
class NodeValues:
    """Makes the columns of one node from its points, moment by moment.

    A rate is missing at the first moment, and where its counter went back. Counters of GPUs are missing while
    all values of the GPUs are those of the moment before: their exporter reads them more seldom.
    """

    _totals: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    _xids: dict[str, int] = field(default_factory=dict)
    _gpus: Mapping[str, Device] = field(default_factory=dict)
    _changed: float = 0.0

    def at(self, ts: float, points: Iterable[Point]) -> Values:
        """Return the columns at event time ``ts`` (Unix s); of equal series the last one counts."""
        grouped: dict[tuple[Owner, str, str], list[Point]] = defaultdict(list)
        for point in points:
            grouped[point.rule.owner, point.instance, point.rule.column].append(point)
        values = Values()
        for (owner, instance, column), group in grouped.items():
            rule = group[-1].rule
            if rule.how == "xid":
                values.xids += self._new_xid(instance, int(group[-1].value))
                continue
            value = self._value(rule, instance, group, ts)
            if value is not None:
                values.device(owner, instance)[column] = _fitting(column, value)
        if values.gpu != self._gpus:
            self._gpus, self._changed = values.gpu, ts
        elif ts - self._changed < UNCHANGED_SECONDS:
            values.gpu = gauges(values.gpu)
        return values

    def _value(self, rule: Rule, instance: str, group: Sequence[Point], ts: float) -> float | None:
        last = group[-1].value
        match rule.how:
            case "value":
                return last * rule.factor
            case "sum":
                return sum(point.value for point in group) * rule.factor
            case "bits":
                bits = {int(point.rule.factor) for point in group if point.value > 0}
                return float(sum(bits))
            case "is":
                return float(last == rule.factor)
            case "count":
                return float(len({point.cpu for point in group}))
            case "xid":
                return None
            case "rate" | "share" | "busy":
                return self._rate(rule, instance, group, ts)

    def _rate(self, rule: Rule, instance: str, group: Sequence[Point], ts: float) -> float | None:
        total = sum(point.value for point in group)
        key = instance, rule.column
        before, self._totals[key] = self._totals.get(key), (ts, total)
        if before is None or ts <= before[0] or total < before[1]:
            return None
        rate = (total - before[1]) / (ts - before[0]) * rule.factor
        if rule.how == "rate":
            return rate
        share = rate / len({point.cpu for point in group})
        # The counters of the CPUs are not read at the same instant.
        return min(1.0, max(0.0, share if rule.how == "share" else 1.0 - share))

    def _new_xid(self, gpu: str, code: int) -> list[Xid]:
        """Return the XID if it differs from the one before; the first value may be of long ago."""
        before, self._xids[gpu] = self._xids.get(gpu), code
        return [Xid(gpu, code)] if code > 0 and before is not None and before != code else []


def gauges(devices: Mapping[str, Device]) -> dict[str, Device]:
    """Return the columns without the counters: one that is not read again has not stood still."""
    return {
        name: {column: value for column, value in columns.items() if not column.endswith("_total")}
        for name, columns in devices.items()
    }


def _fitting(column: str, value: float) -> Value:
    if column in _WHOLE:
        return int(value) if abs(value) < _INT64 else None
    return value if abs(value) < _FLOAT32_MAX else None
