"""What the script of the plots repeats of the code in Python is the same there."""

import json
import re

from alerts.report import quantity
from api.pages import assets

SCRIPT = (assets.FOLDER / "plots.js").read_text()


def table(name):
    """Return a constant of the script: as JSON, once the names of an object have quotes."""
    found = re.search(rf"const {name} = ([{{\[].*?[}}\]]);", SCRIPT, re.DOTALL)
    assert found is not None
    return json.loads(re.sub(r"([{,]\s*)(\w+):", r'\1"\2":', found[1]))


def test_units_are_written_as_in_findings():
    """But a ratio has no unit on an axis, where it may be above one."""
    without = {"1": "", "ratio": ""}
    assert table("WRITTEN") == without | quantity._WRITTEN
    assert {unit: tuple(parts) for unit, parts in table("PARTS").items()} == quantity._PARTS


def test_throttle_reasons_are_named_as_in_findings():
    """By bit."""
    assert {1 << bit: name for bit, name in enumerate(table("REASONS"))} == quantity._REASONS


def test_every_unit_of_a_metric_name_is_known_to_the_plots():
    """Those that stand as they are take SI prefixes."""
    known = {"bitmask", *table("WRITTEN"), *table("PARTS"), *quantity._PREFIXED, "s"}
    assert set(quantity._UNITS_OF_NAMES.values()) <= known
