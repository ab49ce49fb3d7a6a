"""Heartbeats of the processes in the database they share."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from psycopg import Connection
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from store.text import storable, storable_json


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Time and report of the last heartbeat of an instance of a process."""

    process: str
    instance: str
    at: datetime
    detail: dict[str, Any] = field(default_factory=dict)


def beat(conn: Connection[Any], heartbeat: Heartbeat) -> None:
    """Record a heartbeat."""
    conn.execute(
        "INSERT INTO heartbeats (process, instance, at, detail) VALUES (%s, %s, %s, %s) "
        "ON CONFLICT (process, instance) DO UPDATE SET at = excluded.at, detail = excluded.detail",
        (
            storable(heartbeat.process),
            storable(heartbeat.instance),
            heartbeat.at,
            Jsonb(storable_json(heartbeat.detail)),
        ),
    )


def since(conn: Connection[Any], at: datetime) -> list[Heartbeat]:
    """Return heartbeats since ``at``, by process and instance."""
    with conn.cursor(row_factory=class_row(Heartbeat)) as cursor:
        return cursor.execute(
            "SELECT process, instance, at, detail FROM heartbeats WHERE at >= %s ORDER BY process, instance",
            (at,),
        ).fetchall()
