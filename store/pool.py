"""Connections to the database, kept open and handed out."""

from psycopg import Connection
from psycopg_pool import ConnectionPool


def open_pool(dsn: str, *, max_size: int = 8, name: str = "slowrank") -> ConnectionPool[Connection]:
    """Return an open pool of autocommit connections; it connects in the background and again after outages.

    The caller closes it. Raises ``psycopg_pool.PoolTimeout`` from ``connection()`` while nothing answers.
    """
    return ConnectionPool(
        dsn,
        min_size=1,
        max_size=max_size,
        open=True,
        name=name,
        # What died while it lay idle (a restart, a firewall) is noticed before it is handed out.
        check=ConnectionPool.check_connection,
        kwargs={"autocommit": True, "application_name": name},
    )
