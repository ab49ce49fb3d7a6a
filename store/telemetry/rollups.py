"""Writes roll-ups by binary COPY: a repeated bucket changes nothing, one with more samples replaces it.

Rows go through a temporary table, so that a repeated bucket (a replay, two workers) does not fail the batch.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from psycopg import Connection, sql

from store.findings.rows import moment
from store.telemetry.buckets import ROLLED, TABLE, Block, NodeLatest, SampleRollup, StepRollup
from store.text import storable

_SAMPLE_KEY = ("cluster", "node", "instance", "bucket")
_STEP_KEY = ("cluster", "job_id", "attempt", "rank", "bucket")
# Binary COPY converts nothing: each type must be the table's own.
_STEP_COLUMNS = {
    "cluster": "text",
    "job_id": "text",
    "attempt": "int4",
    "rank": "int4",
    "bucket": "timestamptz",
    "node": "text",
    "n_steps": "int4",
    "step_seconds_sum": "float8",
    "step_seconds_max": "float8",
    "compute_seconds_sum": "float8",
    "compute_seconds_max": "float8",
    "wait_seconds_sum": "float8",
    "checkpoint_seconds_sum": "float8",
    "first_step": "int8",
    "last_step": "int8",
}


def write_samples(conn: Connection[Any], rows: Iterable[SampleRollup]) -> int:
    """Store sample roll-ups in one transaction; return how many rows that inserted or replaced."""
    blocks: dict[Block, list[SampleRollup]] = defaultdict(list)
    for row in rows:
        blocks[row.block].append(row)
    with conn.transaction():
        # Sorted: two writers that lock the tables in different orders could deadlock.
        return sum(_write_block(conn, block, blocks[block]) for block in sorted(blocks))


def write_steps(conn: Connection[Any], rows: Iterable[StepRollup]) -> int:
    """Store step roll-ups in one transaction; return how many rows that inserted or replaced."""
    table = _Table("steps_10s", _STEP_COLUMNS, _STEP_KEY, "n_steps")
    with conn.transaction():
        return table.write(conn, [[_value(getattr(row, c), c) for c in _STEP_COLUMNS] for row in rows])


def write_nodes(conn: Connection[Any], rows: Iterable[NodeLatest]) -> None:
    """Store the latest state of nodes; an older one changes nothing."""
    with conn.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO nodes (cluster, node, last_seen_at, boot_id, seq, gpus, nics, job_id, rack, switch) "
            "VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT (cluster, node) DO UPDATE SET "
            "last_seen_at = excluded.last_seen_at, boot_id = excluded.boot_id, seq = excluded.seq, "
            "gpus = excluded.gpus, nics = excluded.nics, job_id = excluded.job_id, rack = excluded.rack, "
            "switch = excluded.switch "
            "WHERE excluded.last_seen_at > nodes.last_seen_at",
            # Sorted: two writers that lock the same rows in different orders would deadlock.
            [_node(row) for row in sorted(rows, key=lambda r: (r.cluster, r.node, r.last_seen_at))],
        )


def _write_block(conn: Connection[Any], block: Block, rows: Sequence[SampleRollup]) -> int:
    values = {rolled.column: "float4" for rolled in ROLLED[block]}
    columns = {"cluster": "text", "node": "text", "instance": "text", "bucket": "timestamptz", "n": "int4"}
    table = _Table(TABLE[block], columns | values, _SAMPLE_KEY, "n")
    return table.write(conn, [_sample(row) for row in rows])


class _Table:
    """One roll-up table: its columns with exact types, its key and the column that counts samples."""

    def __init__(self, name: str, columns: dict[str, str], key: tuple[str, ...], fullness: str) -> None:
        self._types = list(columns.values())
        staging = sql.Identifier(f"staging_{name}")
        target, names = sql.Identifier(name), _list(columns)
        # Created once per connection, without the table's keys; emptied by every commit.
        self._create = sql.SQL(
            "CREATE TEMP TABLE IF NOT EXISTS {} ON COMMIT DELETE ROWS AS TABLE {} WITH NO DATA"
        ).format(staging, target)
        self._copy = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT binary)").format(staging, names)
        # DISTINCT ON: one INSERT must not touch a row twice, so of a repeated bucket the fullest is taken.
        self._merge = sql.SQL(
            "INSERT INTO {target} ({names}) SELECT DISTINCT ON ({key}) {names} FROM {staging} "
            "ORDER BY {key}, {full} DESC ON CONFLICT ({key}) DO UPDATE SET {changes} "
            "WHERE excluded.{full} > {target}.{full}"
        ).format(
            target=target,
            names=names,
            staging=staging,
            key=_list(key),
            full=sql.Identifier(fullness),
            changes=sql.SQL(", ").join(
                sql.SQL("{0} = excluded.{0}").format(sql.Identifier(c)) for c in columns if c not in key
            ),
        )

    def write(self, conn: Connection[Any], rows: Sequence[Sequence[Any]]) -> int:
        if not rows:
            return 0
        conn.execute(self._create)
        with conn.cursor() as cursor:
            with cursor.copy(self._copy) as copy:
                copy.set_types(self._types)
                for row in rows:
                    copy.write_row(row)
            return cursor.execute(self._merge).rowcount


def _list(names: Iterable[str]) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(name) for name in names)


def _sample(row: SampleRollup) -> list[Any]:
    key = [storable(row.cluster), storable(row.node), storable(row.instance), moment(row.bucket), row.n]
    return key + [_finite(v) for v in row.values]


def _node(row: NodeLatest) -> tuple[Any, ...]:
    names = (None if name is None else storable(name) for name in (row.job_id, row.rack, row.switch))
    texts = (storable(row.cluster), storable(row.node))
    return (*texts, moment(row.last_seen_at), storable(row.boot_id), row.seq, row.gpus, row.nics, *names)


def _value(value: Any, column: str) -> Any:
    if column == "bucket":
        return moment(value)
    if isinstance(value, str):
        return storable(value)
    return _finite(value) if isinstance(value, float) else value


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
