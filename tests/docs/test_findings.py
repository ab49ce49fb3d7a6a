"""docs/findings.md: kinds, fields, statuses and scopes are those of the code."""

import re
from pathlib import Path
from typing import get_args

import kinds_table

from alerts.finding import Status
from alerts.silence import labels
from alerts.stated_severity import ORDER
from api.finding_schema import definitions
from api.security.auth import SCOPES
from slowrank.telemetry import Subject

PAGE = (Path(__file__).resolve().parents[2] / "docs/findings.md").read_text()
UNSEEN = {"schema", "last_seen_at", "resolved_at", "detector_version"}
ADDED_WHEN_SERVED = {"updated_at", "acknowledged", "closed", "feedback", "history", "truncated"}
ADDED_WHEN_SERVED |= {"silenced_by", "silenced_until", "no_steps_since"}


def test_the_table_of_kinds_is_written_from_their_rows():
    """Each kind that a finding may have is listed with what it means, its severity and its action."""
    assert kinds_table.page(PAGE) == PAGE, "run: PYTHONPATH=. python scripts/kinds_table.py"


def test_every_field_is_listed():
    """The first table names the fields of the schema, and no other."""
    table = PAGE.partition("## Fields")[2].partition("## States")[0]
    names = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    listed = set(re.findall(r"`(\w+)`", " ".join(names)))
    assert listed == set(definitions()["Finding"]["properties"]) - UNSEEN - ADDED_WHEN_SERVED


def test_every_status_and_severity_is_listed():
    """Each has a row of its own."""
    for word in (*get_args(Status), *ORDER):
        assert f"\n| `{word}` | " in PAGE


def test_labels_of_silences_are_those_that_match():
    """The page names the labels that matchers see."""
    everything = {
        "subject": dict.fromkeys(Subject.__struct_fields__, "x"),
        **dict.fromkeys(("kind", "severity", "id"), "x"),
    }
    [listed] = re.findall(r"A silence matches on ((?:`\w+`[,\s]*(?:and\s)?)+)", PAGE)
    assert set(re.findall(r"`(\w+)`", listed)) == set(labels(everything))


def test_scopes_exist():
    """The table of the API names scopes that a key can have."""
    assert set(re.findall(r"`(\w+:\w+)`", PAGE)) <= set(SCOPES)
