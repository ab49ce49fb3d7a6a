"""Stores the inhibition rules of users."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, LiteralString

from psycopg import Connection
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from alerts.inhibition import Inhibition
from alerts.silence import labels
from store.findings.silences import matchers
from store.text import storable, storable_json

# Rules that there may be; each is evaluated for every event (chosen: far more than people keep).
MAX_RULES = 100

_SELECT: LiteralString = "SELECT id, source, target, equal, created_by, comment FROM inhibitions "


def add(conn: Connection[Any], rule: Inhibition) -> bool:
    """Store a rule; return False where there are ``MAX_RULES`` already."""
    cursor = conn.execute(
        "INSERT INTO inhibitions (id, source, target, equal, created_by, comment) "
        "SELECT %s, %s, %s, %s, %s, %s WHERE (SELECT count(*) FROM inhibitions) < %s",
        (
            rule.id,
            Jsonb(storable_json([asdict(matcher) for matcher in rule.source])),
            Jsonb(storable_json([asdict(matcher) for matcher in rule.target])),
            list(rule.equal),
            storable(rule.created_by),
            storable(rule.comment),
            MAX_RULES,
        ),
    )
    return cursor.rowcount == 1


def get(conn: Connection[Any], rule_id: str) -> Inhibition | None:
    """Return one rule."""
    found = _select(conn, "WHERE id = %s", (storable(rule_id),))
    return found[0] if found else None


def listed(conn: Connection[Any]) -> list[Inhibition]:
    """Return all rules, oldest first."""
    return _select(conn, "ORDER BY created_at, id", ())


def remove(conn: Connection[Any], rule_id: str) -> bool:
    """Remove a rule; return whether there was one."""
    return conn.execute("DELETE FROM inhibitions WHERE id = %s", (storable(rule_id),)).rowcount == 1


def applying(conn: Connection[Any], known: Mapping[str, str]) -> Inhibition | None:
    """Return a rule by which an open finding holds back the finding with the labels ``known``, or None."""
    rules = [rule for rule in listed(conn) if rule.concerns(known)]
    if not rules:
        return None
    # Few findings are open at once; the cluster is narrowed where every rule asks for the same one.
    cluster = known.get("cluster") if all("cluster" in rule.equal for rule in rules) else None
    rows = conn.execute(
        "SELECT doc, severity FROM findings WHERE status IN ('open', 'acknowledged') AND NOT shadow "
        "AND id <> %s AND (%s::text IS NULL OR cluster = %s)",
        (known.get("finding_id", ""), cluster, cluster),
    )
    for doc, severity in rows:
        source = labels(doc | {"severity": severity})
        for rule in rules:
            if rule.holds(known, source):
                return rule
    return None


def _select(conn: Connection[Any], where: LiteralString, parameters: tuple[Any, ...]) -> list[Inhibition]:
    with conn.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(_SELECT + where, parameters).fetchall()
    return [
        Inhibition(
            **(
                row
                | {"source": matchers(row["source"]), "target": matchers(row["target"])}
                | {"equal": tuple(row["equal"])}
            )
        )
        for row in rows
    ]
