"""Which database errors are the row's fault, and which pass: what a caller that must not lose rows asks."""

import struct

from psycopg import DataError, Error, IntegrityError
from psycopg_pool import PoolTimeout

# The last three are psycopg's, of a value that it cannot put into its wire format.
REFUSED: tuple[type[Exception], ...] = (DataError, IntegrityError, OverflowError, ValueError, struct.error)
"""The same rows will be refused again: set them aside."""

AWAY: tuple[type[Exception], ...] = (Error, PoolTimeout)
"""Everything else: no server, no connection, no table yet. Wait and try again."""
