"""Decodes lines of JSON, also with the NaN and Infinity that Python and other writers put into them.

JSON has no such values. In a row NaN is no value, as an empty cell of a table; a loss or gradient norm that
is infinite is one (``NOT_FINITE``).
"""

import json
import math
from typing import Any

import msgspec

from slowrank.telemetry.schema import NOT_FINITE

# Raised for what is no JSON: by msgspec, and for bytes that are no text or too deeply nested.
NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_MAY_DIVERGE = ("loss", "grad_norm")

_decode = msgspec.json.Decoder().decode


def decode_line(line: bytes) -> Any:
    """Return the value that a line holds, its objects without values that are not finite.

    A loss that is NaN stays, so that the reader can tell of it. Raises one of ``NOT_JSON``.
    """
    try:
        return _decode(line)
    except NOT_JSON:
        if b"NaN" not in line and b"Infinity" not in line:
            raise
        try:
            found = json.loads(line.decode())
        except (ValueError, RecursionError):
            found = None
        if found is None:
            raise
    return _finite(found)


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(one) for one in value]
    if not isinstance(value, dict):
        return value
    kept = {}
    for name, one in value.items():
        if not isinstance(one, float) or math.isfinite(one):
            kept[name] = _finite(one) if isinstance(one, dict | list) else one
        elif name in _MAY_DIVERGE and one != -math.inf:
            kept[name] = one if math.isnan(one) else NOT_FINITE
    return kept
