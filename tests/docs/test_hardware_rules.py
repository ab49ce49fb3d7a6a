"""docs/hardware-rules.md is what the tables of the rules say."""

import hardware_page
import pytest

from streams.config.detector_catalogue import RULES

SOURCES = (
    "NVIDIA XID catalogue",
    "NVIDIA Fabric Manager guide",
    "PCI Express AER",
    "Linux",
    "NVML",
    "NVSentinel",
    "DCGM",
    "gpud",
    "ByteRobust",
    "SuperBench",
    "slowrank",
)
ROWS = list(hardware_page.rows())


def test_the_page_is_up_to_date():
    """Nobody writes it by hand."""
    assert hardware_page.PAGE.read_text() == hardware_page.page(), (
        "run: PYTHONPATH=. python scripts/hardware_page.py"
    )


def test_every_rule_that_can_be_switched_is_there_and_no_other():
    """Changes of level, which are not of the hardware's saying, are left out."""
    named = {row[0].strip("`") for row in ROWS if row[0].startswith("`")}
    assert named == {rule for rule in RULES if not rule.startswith("change.")}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]} {row[1]}")
def test_every_rule_names_who_set_it(row):
    """A source is one of those the handbooks name, or ourselves."""
    assert row[-1].removeprefix("after ").startswith(SOURCES)
