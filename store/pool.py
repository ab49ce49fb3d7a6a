"""A pool of database connections."""

from psycopg import Connection
from psycopg_pool import ConnectionPool


def open_pool(dsn: str, *, max_size: int = 8, name: str = "slowrank") -> ConnectionPool[Connection]:
    """Return an open pool of autocommit connections that reconnects after outages.

    The caller closes it. Raises ``psycopg_pool.PoolTimeout`` from ``connection()`` while nothing answers.
    """
    return ConnectionPool(
        dsn,
        min_size=1,
        max_size=max_size,
        open=True,
        name=name,
        # Connections that died while idle (server restart, firewall) are replaced before use.
        check=ConnectionPool.check_connection,
        kwargs={"autocommit": True, "application_name": name},
    )
