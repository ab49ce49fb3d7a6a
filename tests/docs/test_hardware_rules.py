"""docs/hardware-rules.md is what the tables of the rules say."""

import hardware_page
import pytest

from streams.config.detector_catalogue import RULES
from streams.node.detectors.watched_metrics import WATCHED
from streams.node.rules.counter_rules import GPU_COUNTS, NIC_COUNTS
from streams.node.rules.state_rules import GPU_STATES, NIC_STATES

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
    """The page is generated, not edited by hand."""
    assert hardware_page.PAGE.read_text() == hardware_page.page(), (
        "run: PYTHONPATH=. python scripts/hardware_page.py"
    )


def test_every_rule_that_can_be_switched_is_there_and_no_other():
    """Level changes, which are statistical and not reported by hardware, are left out."""
    named = {row[0].strip("`") for row in ROWS if row[0].startswith("`")}
    assert named == {rule for rule in RULES if not rule.startswith("change.")}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]} {row[1]}")
def test_every_rule_names_who_set_it(row):
    """A source is one of SOURCES or slowrank."""
    assert row[-1].removeprefix("after ").startswith(SOURCES)


def test_the_families_that_the_page_describes_are_those_of_the_rules():
    """All that lowers a clock is one family, and all that ports show is one."""
    of_gpus = [rule.symptom for rule in (*GPU_COUNTS, *GPU_STATES)]
    clocks = [s.family for s in of_gpus if s.kind.startswith(("throttle.", "clock."))]
    assert {*clocks, *(w.family for w in WATCHED if w.owner == "gpu")} == {"clocks"}
    assert {rule.symptom.family for rule in (*NIC_COUNTS, *NIC_STATES)} == {"nic"}
    assert "What lowers the clocks of a GPU is one family" in hardware_page.HEAD
