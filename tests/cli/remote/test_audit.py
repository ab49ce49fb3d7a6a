"""``slowrank audit``: whether the log is as it was written."""

from datetime import UTC, datetime

import psycopg
from typer.testing import CliRunner

from cli import app
from store.access import audit
from store.access.audit import Entry
from store.migrate import migrate


def run(*arguments):
    return CliRunner().invoke(app, ["audit", *arguments])


def test_a_changed_entry_is_named(database):
    """An untouched log passes; the first entry that was changed in the database is reported."""
    migrate(database)
    with psycopg.connect(database, autocommit=True) as conn:
        for i in range(3):
            audit.record(conn, Entry(at=datetime.now(UTC), actor="a", action=f"b{i}", target="c"))
        well = run("--dsn", database)
        assert (well.exit_code, well.stderr) == (0, "")
        conn.execute("SET session_replication_role = replica")
        conn.execute("UPDATE audit SET actor = 'x' WHERE seq = 2")
    broken = run("--dsn", database)
    assert broken.exit_code == 1
    assert "entry 2" in broken.stderr


def test_a_database_that_is_not_there_is_a_plain_error():
    """No answer is another exit status than a broken chain."""
    result = run("--dsn", "postgresql://127.0.0.1:1/x")
    assert result.exit_code == 2
    assert "Traceback" not in result.output
