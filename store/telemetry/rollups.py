"""Writes roll-ups by binary COPY: a repeated bucket changes nothing, one with more samples replaces it.

Rows go through a temporary table, so that a repeated bucket (a replay, two workers) does not fail the batch.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, LiteralString

import numpy as np
import numpy.typing as npt
from psycopg import Connection, sql

from store.findings.rows import moment
from store.telemetry.binary_copy import encoded
from store.telemetry.buckets import (
    ROLLED,
    STEP_SECONDS,
    TABLE,
    Block,
    NodeLatest,
    SampleRollups,
    StepRollups,
)
from store.text import storable

# TimescaleDB decompresses what late rows may repeat, a thousand rows of each series, and by default refuses
# more than 100,000 in a transaction: a hundred series. The same rows would be refused again and again.
_UNLIMITED: LiteralString = (
    "SELECT set_config(name, '0', true) "
    "FROM (VALUES ('timescaledb.max_tuples_decompressed_per_dml_transaction')) AS settings (name) "
    "WHERE current_setting(name, true) IS NOT NULL"
)

_SAMPLE_KEY = ("cluster", "node", "instance", "bucket")
_STEP_KEY = ("cluster", "job_id", "attempt", "rank", "bucket")
_STEP_COLUMNS = {
    "attempt": "int4",
    "rank": "int4",
    "bucket": "timestamptz",
    "n_steps": "int4",
    "first_step": "int8",
    "last_step": "int8",
    **dict.fromkeys(STEP_SECONDS, "float8"),
}


def write_samples(conn: Connection[Any], rollups: Iterable[SampleRollups]) -> int:
    """Store sample roll-ups in one transaction; return how many rows that inserted or replaced."""
    blocks: dict[Block, list[SampleRollups]] = defaultdict(list)
    for held in rollups:
        blocks[held.block].append(held)
    with conn.transaction():
        # Sorted: two writers that lock the tables in different orders could deadlock.
        return sum(_write_block(conn, block, blocks[block]) for block in sorted(blocks))


def write_steps(conn: Connection[Any], rollups: Sequence[StepRollups]) -> int:
    """Store step roll-ups in one transaction; return how many rows that inserted or replaced."""
    if not rollups:
        return 0
    table = _Table("steps_10s", ("cluster", "job_id", "node"), _STEP_COLUMNS, _STEP_KEY, "n_steps")
    texts = [(held.cluster, held.job_id, held.node) for held in rollups for _ in range(len(held))]
    columns = (
        _repeated(rollups, [held.attempt for held in rollups]),
        np.concatenate([held.ranks for held in rollups]),
        _repeated(rollups, [held.bucket for held in rollups]),
        np.concatenate([held.n_steps for held in rollups]),
        np.concatenate([held.first_step for held in rollups]),
        np.concatenate([held.last_step for held in rollups]),
        *np.hstack([held.seconds for held in rollups]),
    )
    with conn.transaction():
        return table.write(conn, texts, columns)


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


def _write_block(conn: Connection[Any], block: Block, rollups: Sequence[SampleRollups]) -> int:
    columns = {"bucket": "timestamptz", "n": "int4"} | {rolled.column: "float4" for rolled in ROLLED[block]}
    table = _Table(TABLE[block], ("cluster", "node", "instance"), columns, _SAMPLE_KEY, "n")
    texts = [(held.cluster, held.node, instance) for held in rollups for instance in held.instances]
    counts = np.array([n for held in rollups for n in held.n])
    buckets = _repeated(rollups, [held.bucket for held in rollups])
    values = np.hstack([held.values for held in rollups])
    return table.write(conn, texts, (buckets, counts, *values))


class _Table:
    """One roll-up table: its columns with exact types, its key and the column that counts samples."""

    def __init__(
        self, name: str, texts: Sequence[str], numbers: dict[str, str], key: tuple[str, ...], fullness: str
    ) -> None:
        self._types = list(numbers.values())
        columns = (*texts, *numbers)
        staging = sql.Identifier(f"staging_{name}")
        target, names = sql.Identifier(name), _list(columns)
        # Created once per connection, without the table's keys; emptied by every commit.
        self._create = sql.SQL(
            "CREATE TEMP TABLE IF NOT EXISTS {} ON COMMIT DELETE ROWS AS TABLE {} WITH NO DATA; " + _UNLIMITED
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

    def write(
        self,
        conn: Connection[Any],
        texts: Sequence[tuple[str, ...]],
        columns: Sequence[npt.NDArray[Any]],
    ) -> int:
        conn.execute(self._create)
        with conn.cursor() as cursor:
            with cursor.copy(self._copy) as copy:
                copy.write(encoded(texts, self._types, columns))
            return cursor.execute(self._merge).rowcount


def _repeated(
    rollups: Sequence[SampleRollups] | Sequence[StepRollups], each: Sequence[float]
) -> npt.NDArray[Any]:
    """Return a value of each roll-up for each of its rows."""
    return np.repeat(np.array(each), [len(held) for held in rollups])


def _list(names: Iterable[str]) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(name) for name in names)


def _node(row: NodeLatest) -> tuple[Any, ...]:
    names = (None if name is None else storable(name) for name in (row.job_id, row.rack, row.switch))
    texts = (storable(row.cluster), storable(row.node))
    return (*texts, moment(row.last_seen_at), storable(row.boot_id), row.seq, row.gpus, row.nics, *names)
