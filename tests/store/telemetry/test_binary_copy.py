"""Rows encoded from columns are read by PostgreSQL as the values they were."""

import math
from datetime import UTC, datetime

import numpy as np
import pytest

from store.error_classes import REFUSED
from store.telemetry.binary_copy import encoded

NAN, INF = math.nan, math.inf


def test_every_type_and_what_is_no_number(conn):
    """Numbers of all sizes in rows of different lengths; what no number is, or too large, is NULL."""
    conn.execute(
        "CREATE TEMP TABLE mixed "
        "(name text, at timestamptz, small int4, large int8, single float4, double float8)"
    )
    kinds = ("timestamptz", "int4", "int8", "float4", "float8")
    columns = (
        np.array([0.0, 946_684_800.25, 1_795_160_000.0, 10.0]),
        np.array([-1, 0, 2**31 - 1, 7]),
        np.array([-(2**63), 0, 2**63 - 1, 7]),
        np.array([1.5, NAN, -INF, 1e39]),
        np.array([NAN, -0.0, 1e300, INF]),
    )
    names = [("a",), ("",), ("n\x00\t\\N",), ("\u00fc\ud800",)]
    with conn.cursor().copy("COPY mixed FROM STDIN (FORMAT binary)") as copy:
        copy.write(encoded(names, kinds, columns))

    def at(seconds):
        return datetime.fromtimestamp(seconds, UTC)

    assert conn.execute("SELECT * FROM mixed ORDER BY small").fetchall() == [
        ("a", at(0), -1, -(2**63), 1.5, None),
        ("", at(946_684_800.25), 0, 0, None, -0.0),
        ("\u00fc\ufffd", at(10), 7, 7, None, None),
        ("n\ufffd\t\\N", at(1_795_160_000), 2**31 - 1, 2**63 - 1, None, 1e300),
    ]


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1])
def test_an_integer_that_does_not_fit_is_refused(value):
    """By the error that lets the writer leave out this row alone; it must not become another number."""
    with pytest.raises(REFUSED, match="do not fit int4"):
        encoded([("a",), ("b",)], ("int4",), (np.array([1, value]),))
