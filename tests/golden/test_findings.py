"""Findings of small simulated clusters, as they were when their expected files were written.

Kinds, places, times and texts are compared to the letter, numbers to four digits: the vector instructions of
another processor round differently. ``--exact`` compares bytes, for a change of structure on one machine. A
change that is meant to change findings rewrites the files, and its commit shows how they differ:

    python -m pytest tests/golden --rewrite
"""

import json
import math
from pathlib import Path

import pytest

from tests.golden.scenarios import SCENARIOS, findings

EXPECTED = Path(__file__).with_name("expected")


def same(found, expected):
    """Tell whether two values of JSON are equal, numbers up to rounding; Unix times to 0.01 s."""
    if isinstance(found, dict) and isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same(found[key], expected[key]) for key in found)
    if isinstance(found, list) and isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(found, float) and isinstance(expected, float):
        return math.isclose(
            found,
            expected,
            rel_tol=1e-4 if abs(found) < 1e9 else 0.0,
            abs_tol=1e-2 if abs(found) >= 1e9 else 1e-4,
        )
    return found == expected


@pytest.mark.parametrize("name", SCENARIOS)
def test_findings_equal_the_expected_file(name, request):
    """The same telemetry gives the same findings: kinds, places, times, evidence and text."""
    path, found = EXPECTED / f"{name}.ndjson", findings(name)
    if request.config.getoption("--rewrite"):
        path.write_bytes(found)
    lines, expected = found.splitlines(), path.read_bytes().splitlines()
    if request.config.getoption("--exact") or not same(
        *([json.loads(x) for x in y] for y in (lines, expected))
    ):
        assert lines == expected


@pytest.mark.parametrize(
    ("found", "expected", "equal"),
    [
        ({"a": 1.00001}, {"a": 1.0}, True),
        ({"a": 1.001}, {"a": 1.0}, False),
        ({"at": 1795160900.2040558}, {"at": 1795160900.2040562}, True),
        ({"at": 1795160900.2}, {"at": 1795160901.2}, False),
        ([1, "x"], [1, "y"], False),
        ([1], [1, 2], False),
        ({"a": 1}, {"b": 1}, False),
    ],
)
def test_only_rounding_is_allowed_for(found, expected, equal):
    """A number that differs in its fourth digit is another finding."""
    assert same(found, expected) is equal
