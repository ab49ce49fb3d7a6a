"""Whether a database is slowrank's, asked by whoever may only read it."""

import psycopg

CONNECT_SECONDS = 5


def lacks_schema(dsn: str) -> bool:
    """Return whether the database answers and has none of slowrank's tables."""
    try:
        # Every role of slowrank finds the table's name, whatever it may do with it.
        with psycopg.connect(dsn, connect_timeout=CONNECT_SECONDS) as conn:
            return conn.execute("SELECT to_regclass('findings') IS NULL").fetchone() == (True,)
    except psycopg.Error:
        return False
