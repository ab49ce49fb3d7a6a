"""Checks whether a database has slowrank's schema, with read rights only."""

import psycopg

# Chosen: a local network takes milliseconds, and who asks asks again.
CONNECT_SECONDS = 5


def lacks_schema(dsn: str) -> bool:
    """Return whether the database answers and has none of slowrank's tables."""
    try:
        # to_regclass needs no right on the table.
        with psycopg.connect(dsn, connect_timeout=CONNECT_SECONDS) as conn:
            return conn.execute("SELECT to_regclass('findings') IS NULL").fetchone() == (True,)
    except psycopg.Error:
        return False
