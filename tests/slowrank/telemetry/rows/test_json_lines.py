"""Lines of JSON as other programs write them."""

import json
import math

import pytest

from slowrank.telemetry.rows.json_lines import NOT_JSON, decode_line
from slowrank.telemetry.schema import NOT_FINITE


def test_values_that_are_not_finite_are_not_given():
    """At the top and within coordinates; what stands in a text stays."""
    row = {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 1.5, "e": None, "f": "NaN"}

    assert decode_line(json.dumps(row | {"coords": row}).encode()) == {
        **(kept := {"d": 1.5, "e": None, "f": "NaN"}),
        "coords": kept,
    }
    assert decode_line(b'[{"a": NaN, "b": 1}]') == [{"b": 1}]


def test_an_infinite_loss_is_no_number_and_a_nan_is_kept():
    """Infinity is what ``NOT_FINITE`` is written for; the reader counts NaN, which may be either."""
    row = decode_line(b'{"loss": Infinity, "grad_norm": NaN}')
    assert row["loss"] == NOT_FINITE
    assert math.isnan(row["grad_norm"])
    assert decode_line(b'{"loss": -Infinity}') == {}


@pytest.mark.parametrize(
    "line", [b'{"a": NaN', b'{"a": nan}', b'{"a": NaN}\xff', b"[" * 100_000 + b"NaN", b"{"]
)
def test_what_is_no_json_is_refused(line):
    """Whether or not it holds such a value."""
    with pytest.raises(NOT_JSON):
        decode_line(line)
