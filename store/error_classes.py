"""Classes of database errors for callers that must not lose rows: permanent for the row, or temporary."""

import struct

from psycopg import DataError, Error, IntegrityError
from psycopg_pool import PoolTimeout

# The database refuses these rows and will again: set them aside.
# psycopg raises the last three for values that its wire format cannot hold.
REFUSED: tuple[type[Exception], ...] = (DataError, IntegrityError, OverflowError, ValueError, struct.error)

# The database cannot be used now (no server, no connection, no table yet): wait and try again.
UNAVAILABLE: tuple[type[Exception], ...] = (Error, PoolTimeout)
