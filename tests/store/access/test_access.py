"""Keys, the audit log, silences, heartbeats, and what each database role may do."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from psycopg import sql

from alerts.silence import Matcher, Silence
from store import heartbeats
from store.access import audit, keys
from store.access.audit import Entry
from store.access.keys import ApiKey
from store.findings import silences
from store.heartbeats import Heartbeat

NOW = datetime(2026, 11, 20, 8, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)


def issue(conn, **changes):
    key_id, token, sha256 = keys.generate()
    fields = {"id": key_id, "name": "ci", "sha256": sha256, "scopes": ("findings:read",), "created_by": "cli"}
    keys.create(conn, ApiKey(**(fields | {"created_at": NOW} | changes)))
    return token


def verified(conn, token):
    return keys.verify(conn, token, NOW)


def stored(conn, key_id):
    return keys.get(conn, key_id)


def test_key_opens_with_its_secret_only(conn):
    """A token is accepted as issued; another secret, an unknown id or a torn token are not."""
    token, other = issue(conn), issue(conn)
    assert verified(conn, token).name == "ci"
    mixed = "_".join((*token.split("_")[:2], other.split("_")[2]))
    for wrong in (
        mixed,
        token[:-1],
        token + "0",
        "srk_x_y",
        "",
        "srk",
        token.upper(),
        "srk_\x00_\ud800x"[:6],
    ):
        assert keys.verify(conn, wrong, NOW) is None


def test_key_ends(conn):
    """An expired or revoked key opens nothing."""
    expiring, revoked = issue(conn, expires_at=NOW + HOUR), issue(conn)
    assert keys.verify(conn, expiring, NOW) is not None
    assert keys.verify(conn, expiring, NOW + HOUR) is None
    assert keys.revoke(conn, revoked.split("_")[1], NOW)
    assert not keys.revoke(conn, revoked.split("_")[1], NOW)
    assert keys.verify(conn, revoked, NOW) is None
    assert len(keys.listed(conn)) == 2


def test_secret_is_not_stored(conn):
    """Nothing in the row gives the token back."""
    token = issue(conn)
    row = str(conn.execute("SELECT k::text FROM api_keys k").fetchone())
    assert token.split("_")[2] not in row


def test_last_use_is_kept_to_the_minute(conn):
    """Use is written down, but not on every request."""
    key_id = issue(conn).split("_")[1]
    for seconds in (0, 30, 61):
        keys.touch(conn, key_id, NOW + timedelta(seconds=seconds))
    assert stored(conn, key_id).last_used_at == NOW + timedelta(seconds=61)


def test_audit_chain_holds_and_shows_tampering(conn):
    """Entries chain; a changed or removed one is found, and the table refuses both in the ordinary way."""
    for i in range(4):
        audit.record(conn, Entry(at=NOW, actor=f"k\x00{i}", action="key.create", target="t", detail={"i": i}))
    assert audit.first_broken(conn) is None
    assert [e.seq for e in audit.listed(conn, before=4, limit=2)] == [3, 2]
    for statement in ("UPDATE audit SET actor = 'x'", "DELETE FROM audit", "TRUNCATE audit"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute(statement)
    conn.execute("SET session_replication_role = replica")
    conn.execute("UPDATE audit SET actor = 'x' WHERE seq = 3")
    assert audit.first_broken(conn) == 3
    conn.execute("DELETE FROM audit WHERE seq IN (2, 3)")
    assert audit.first_broken(conn) == 4


def test_audit_of_concurrent_writers_is_one_chain(conn, store_dsn):
    """Writers at the same time take turns; no number is missing or doubled."""
    import threading

    def write():
        with psycopg.connect(store_dsn, autocommit=True) as own:
            for _ in range(5):
                audit.record(own, Entry(at=NOW, actor="a", action="b", target="c"))

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert audit.first_broken(conn) is None
    assert audit.listed(conn, limit=1)[0].seq == 20


def test_silences_are_limited_in_number(conn, monkeypatch):
    """Those that have ended do not count, and one that is there can be changed."""
    monkeypatch.setattr(silences, "MAX_CURRENT", 2)
    begin = NOW - HOUR

    def three(name, ends):
        first = Silence(
            id=f"{name}0", matchers=(), starts_at=begin, ends_at=ends, created_by="a", comment="c"
        )
        return [replace(first, id=f"{name}{i}") for i in range(3)]

    old, new = three("old", NOW - HOUR / 2), three("new", NOW + HOUR)
    assert [silences.save(conn, one, begin) for one in old] == [True, True, False]
    assert [silences.save(conn, one, NOW) for one in (*new, new[1])] == [True, True, False, True]
    assert [one.id for one in silences.current(conn, NOW)] == ["new0", "new1"]


def test_silences_come_back_as_they_were(conn):
    """A silence is stored whole, replaced by id and ended rather than deleted."""
    wild = Matcher("node", "gpu-[0-9]+\x00'", is_regex=True)
    silence = Silence(
        id="sil_1", matchers=(wild,), starts_at=NOW, ends_at=NOW + HOUR, created_by="a", comment="'\u202e"
    )
    assert silences.save(conn, silence, NOW)
    held = silences.get(conn, "sil_1")
    assert held is not None
    assert (held.comment, held.matchers[0].value) == ("'\u202e", "gpu-[0-9]+\ufffd'")
    assert silences.current(conn, NOW) == [held]
    assert silences.expire(conn, "sil_1", NOW + HOUR / 2)
    assert silences.current(conn, NOW + HOUR / 2) == []
    assert silences.listed(conn)[0].ends_at == NOW + HOUR / 2
    assert not silences.expire(conn, "sil_1", NOW + HOUR)


def test_heartbeats(conn):
    """The last sign of life of each instance counts."""
    for minutes in (0, 5):
        heartbeats.beat(conn, Heartbeat("streams", "w1", NOW + timedelta(minutes=minutes), {"lag": minutes}))
    assert [h.detail for h in heartbeats.since(conn, NOW)] == [{"lag": 5}]
    assert heartbeats.since(conn, NOW + HOUR) == []


ALLOWED = {
    "slowrank_streams": ["SELECT * FROM findings", "SELECT * FROM webhooks", "DELETE FROM steps_10s"],
    "slowrank_api": [
        "SELECT * FROM findings",
        "SELECT webhook_id FROM webhook_secrets",
        "DELETE FROM silences",
        "UPDATE findings SET status = 'resolved'",
    ],
    "slowrank_notifier": ["SELECT * FROM webhook_secrets", "UPDATE deliveries SET attempts = 0"],
    "slowrank_grafana": ["SELECT * FROM v_findings", "SELECT * FROM v_nodes", "SELECT * FROM v_step_time"],
}
REFUSED = {
    "slowrank_streams": ["SELECT * FROM webhook_secrets", "SELECT * FROM api_keys", "DELETE FROM findings"],
    "slowrank_api": [
        "SELECT secret FROM webhook_secrets",
        "UPDATE findings SET doc = '{}'",
        "DELETE FROM findings",
        "DELETE FROM audit",
        "UPDATE audit SET actor = ''",
        "INSERT INTO samples_10s (bucket, cluster, node, instance, n) VALUES (now(), '', '', '', 1)",
        "DROP TABLE findings",
    ],
    "slowrank_notifier": [
        "SELECT * FROM api_keys",
        "DELETE FROM findings",
        "SELECT * FROM audit",
    ],
    "slowrank_grafana": ["SELECT * FROM findings", "SELECT * FROM api_keys", "DELETE FROM v_rank_heatmap"],
}


def cases(table):
    return [pytest.param(role, what, id=f"{role}: {what}") for role, all_ in table.items() for what in all_]


@pytest.mark.parametrize(("role", "statement"), cases(ALLOWED))
def test_role_may(conn, role, statement):
    """Each role can do its own work."""
    conn.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
    conn.execute(statement)


@pytest.mark.parametrize(("role", "statement"), cases(REFUSED))
def test_role_may_not(conn, role, statement):
    """No role reads what is not its own or rewrites a record."""
    conn.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        conn.execute(statement)
