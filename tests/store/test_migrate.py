"""The migration runner: once, in order, refusing changed files, on every kind of server."""

import secrets
import threading

import psycopg
import pytest
from psycopg import sql

from store.migrate import Migration, MigrationError, bundled, migrate, missing


@pytest.fixture
def empty(server):
    """DSN of an empty database."""
    with psycopg.connect(server, autocommit=True) as conn:
        conn.execute("DROP DATABASE IF EXISTS migrated WITH (FORCE)")
        conn.execute("CREATE DATABASE migrated")
    yield psycopg.conninfo.make_conninfo(server, dbname="migrated")
    with psycopg.connect(server, autocommit=True) as conn:
        conn.execute("DROP DATABASE migrated WITH (FORCE)")


def test_twice_without_effect(empty):
    """The second run applies nothing; what is missing can be asked before and after."""
    assert missing(empty, connect_timeout=5) == [m.name for m in bundled()]
    assert migrate(empty) == [m.name for m in bundled()]
    assert migrate(empty) == []
    assert missing(empty, connect_timeout=5) == []


def test_applied_file_may_not_change(empty):
    """A changed file is refused by name, before anything is applied."""
    first = Migration("0001_a", b"-- migrate:up\nCREATE TABLE a (x int);")
    migrate(empty, [first])
    changed = [Migration("0001_a", first.sql + b" "), Migration("0002_b", b"CREATE TABLE b (x int);")]
    with pytest.raises(MigrationError, match="0001_a"):
        migrate(empty, changed)
    with psycopg.connect(empty) as conn:
        assert conn.execute("SELECT to_regclass('b')").fetchone() == (None,)


def test_failing_migration_leaves_nothing_behind(empty):
    """A file that fails half way is rolled back as a whole and tried again next time."""
    broken = Migration("0001_a", b"CREATE TABLE a (x int); SELECT 1/0;")
    with pytest.raises(psycopg.errors.DivisionByZero):
        migrate(empty, [broken])
    assert migrate(empty, [Migration("0001_a", b"CREATE TABLE a (x int);")]) == ["0001_a"]


def test_without_transaction(empty):
    """A file headed by -- no-transaction may hold what transactions forbid."""
    table = Migration("0001_a", b"CREATE TABLE a (x int);")
    index = Migration("0002_i", b"-- no-transaction\nCREATE INDEX CONCURRENTLY a_x ON a (x);")
    assert migrate(empty, [table, index]) == ["0001_a", "0002_i"]


def test_two_processes_at_once(empty):
    """Of two runners one applies everything and the other finds nothing to do."""
    applied = []
    threads = [threading.Thread(target=lambda: applied.append(migrate(empty))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(applied, key=len) == [[], [m.name for m in bundled()]]


def test_table_of_dbmate_is_taken_over(empty):
    """Versions another tool recorded, without checksums, count as applied."""
    with psycopg.connect(empty, autocommit=True) as conn:
        conn.execute("CREATE TABLE schema_migrations (version varchar PRIMARY KEY)")
        conn.execute("INSERT INTO schema_migrations VALUES ('0001')")
    both = [Migration("0001_a", b"SELECT 1/0;"), Migration("0002_b", b"CREATE TABLE b (x int);")]
    assert migrate(empty, both) == ["0002_b"]


def test_owner_without_privileges(empty):
    """A user who may create neither roles nor extensions still gets the schema."""
    password = secrets.token_hex(8)
    with psycopg.connect(empty, autocommit=True) as conn:
        name = conn.info.dbname
        conn.execute("DROP ROLE IF EXISTS small_owner")
        create = "CREATE ROLE small_owner LOGIN NOSUPERUSER NOCREATEROLE PASSWORD {}"
        conn.execute(sql.SQL(create).format(password))
        conn.execute(sql.SQL("ALTER DATABASE {} OWNER TO small_owner").format(sql.Identifier(name)))
    dsn = psycopg.conninfo.make_conninfo(empty, user="small_owner", password=password)
    try:
        assert migrate(dsn) == [m.name for m in bundled()]
        with psycopg.connect(dsn) as conn:
            assert conn.execute("SELECT count(*) FROM samples_10s").fetchone() == (0,)
    finally:
        with psycopg.connect(empty, autocommit=True) as conn:
            conn.execute("REASSIGN OWNED BY small_owner TO CURRENT_USER")
            conn.execute("DROP OWNED BY small_owner")
            conn.execute("DROP ROLE small_owner")


def test_stored_findings_are_listed_if_they_ever_opened(empty):
    """By their status and history, as of before the column; a worker of that release sets it, too."""
    opened = [m.name for m in bundled()].index("0026_opened_findings")
    migrate(empty, bundled()[:opened])
    insert = (
        "INSERT INTO findings (id, status, dedup_key, cluster, kind, severity, title, subject_type, "
        "detector, confidence, score, occurrences, doc, onset, detected_at, last_seen_at, as_of) VALUES (%s, "
        "%s, 'k', 'c', 'hang.job', 'error', 't', 'job', 'd', 1, 1, 1, '{}', now(), now(), now(), now())"
    )
    lives = {
        "open": (),
        "suspected": (),
        "resolved": ("opened", "resolved"),
        "expired": ("suspected", "expired"),
    }
    with psycopg.connect(empty, autocommit=True) as conn:
        for status, steps in lives.items():
            conn.execute(insert, (status, status))
            for version, step in enumerate(steps):
                conn.execute(
                    "INSERT INTO finding_history VALUES (%s, %s, %s, now(), 'detectors', 'x', 'error')",
                    (status, version, f"finding.{step}"),
                )
        migrate(empty)
        marked = "SELECT id FROM findings WHERE was_open ORDER BY id"
        assert conn.execute(marked).fetchall() == [("open",), ("resolved",)]
        conn.execute("UPDATE findings SET status = 'open' WHERE id = 'suspected'")
        conn.execute("UPDATE findings SET status = 'resolved' WHERE id = 'suspected'")
        assert conn.execute(marked).fetchall() == [("open",), ("resolved",), ("suspected",)]
