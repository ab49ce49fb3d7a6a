"""Says in which roll-up a metric is stored, as what expression, and in which unit it is served."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from psycopg import sql

from slowrank.telemetry.schema import GPU_COLUMNS, HOST_COLUMNS, NIC_COLUMNS, Aggregate
from store.telemetry.buckets import BUCKET_SECONDS, ROLLED, TABLE, Block, Rolled

Owner = Literal["rank", "gpu", "nic", "host"]
"""What one series of a metric belongs to."""

# The step times that the roll-up of steps has.
STEP_METRICS = ("step_seconds", "compute_seconds", "wait_seconds")

# The typical value of a bucket where there is one, else its extreme, else what a counter rose by.
_PREFERRED: tuple[Aggregate, ...] = ("mean", "max", "min", "or", "delta")


@dataclass(frozen=True, slots=True)
class StoredMetric:
    """A metric as it is read: ``value`` is an SQL expression over a row of ``table``.

    ``aggregate`` is how the 10 s of a row became one value; an increase is served per second.
    """

    name: str
    unit: str
    owner: Owner
    table: str
    value: sql.Composable
    aggregate: Aggregate


def stored_metric(name: str) -> StoredMetric | None:
    """Return where a metric is stored, or None where no roll-up has it."""
    return STORED.get(name)


def _of_steps() -> dict[str, StoredMetric]:
    return {
        name: StoredMetric(
            name,
            "s",
            "rank",
            "steps_10s",
            sql.SQL("{}::float8 / nullif(n_steps, 0)").format(sql.Identifier(f"{name}_sum")),
            "mean",
        )
        for name in STEP_METRICS
    }


def _of_samples(block: Block, units: Mapping[str, str]) -> dict[str, StoredMetric]:
    found: dict[str, StoredMetric] = {}
    for rolled in sorted(ROLLED[block], key=lambda r: _PREFERRED.index(r.aggregate)):
        found.setdefault(rolled.metric, _sampled(block, rolled, units[rolled.metric]))
    return found


def _sampled(block: Block, rolled: Rolled, unit: str) -> StoredMetric:
    column, per_second = sql.Identifier(rolled.column), rolled.aggregate == "delta"
    value = sql.SQL("{}::float8").format(column)
    if per_second:
        value = sql.SQL("{}::float8 / {}").format(column, sql.Literal(BUCKET_SECONDS))
    return StoredMetric(
        rolled.metric, f"{unit}/s" if per_second else unit, block, TABLE[block], value, rolled.aggregate
    )


_UNITS = {column.name: column.unit for column in (*GPU_COLUMNS, *NIC_COLUMNS, *HOST_COLUMNS)}

# Every metric that the roll-ups have, by its public name.
STORED: Mapping[str, StoredMetric] = _of_steps() | {
    name: stored for block in TABLE for name, stored in _of_samples(block, _UNITS).items()
}
