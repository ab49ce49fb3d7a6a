"""docs/operations.md: settings, topics, roles, metrics and kinds are those of the code."""

import re
from pathlib import Path

import pytest
from pydantic_core import PydanticUndefined

from cli import COMMANDS
from slowrank.settings import Settings
from slowrank.telemetry.topics import TOPICS
from streams.runtime.monitoring.self_findings import DEAD_LETTERS, LAG

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/operations.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line[:3] == "| `"
]
DOCUMENTED = {row[0].strip("`"): row[1] for row in ROWS if row[0].startswith("`SLOWRANK_")}
# Where the default depends on the machine, the page says on what.
SAID = {
    "SLOWRANK_NODE": "host name",
    "SLOWRANK_STREAMS_RUNTIME_DIR": "below the temporary directory",
    "SLOWRANK_STREAMS_STATE_DIR": "in the runtime folder",
    "SLOWRANK_API_SECRET": "random",
    "SLOWRANK_RUNBOOK_URL": "the API's own",
}


def test_every_setting_is_documented_and_no_other():
    """The table and the settings have the same names."""
    assert set(DOCUMENTED) == {f"SLOWRANK_{name.upper()}" for name in Settings.model_fields}


@pytest.mark.parametrize("name", Settings.model_fields)
def test_defaults_are_those_of_the_code(name):
    """What the page calls the default is the default."""
    default, shown = Settings.model_fields[name].default, DOCUMENTED[f"SLOWRANK_{name.upper()}"]
    assert default is not PydanticUndefined
    if f"SLOWRANK_{name.upper()}" in SAID:
        assert shown == SAID[f"SLOWRANK_{name.upper()}"]
    elif default in (None, (), ""):
        assert shown == "none"
    else:
        assert shown == f"`{str(default).lower() if isinstance(default, bool) else default}`"


def test_topics_are_those_that_are_created():
    """Name, key and retention of each topic."""
    documented = {
        row[0].strip("`"): tuple(row[1:3]) for row in ROWS if row[0].strip("`") in PAGE and len(row) == 4
    }
    for spec in TOPICS:
        assert documented[spec.name] == (spec.key or "–", f"{spec.retention_hours} h")


def test_roles_are_those_of_the_migrations():
    """Every group role the migrations make is explained."""
    sql = (ROOT / "migrations/0001_roles.sql").read_text()
    assert set(re.findall(r"'(slowrank_\w+)'", sql)) <= {row[0].strip("`") for row in ROWS}


def test_commands_exist():
    """Every `slowrank …` on the page is a command."""
    named = set(re.findall(r"\bslowrank ([a-z]+)\b", " ".join(re.findall(r"`([^`\n]+)`", PAGE))))
    assert named <= set(COMMANDS)


def test_alerts_and_kinds_exist():
    """The table of blindness names the alerts of the rule file, all of them, and kinds we report."""
    rules = set(re.findall(r"alert: (\w+)", (ROOT / "deploy/prometheus/rules.yml").read_text()))
    assert rules == set(re.findall(r"`(Slowrank\w+|Watchdog)`", PAGE))
    assert {LAG, DEAD_LETTERS} <= set(re.findall(r"`(self\.\w+)`", PAGE))


def test_metrics_are_exported():
    """No metric on the page is one that nobody serves."""
    sources = [*ROOT.glob("api/**/*.py"), *ROOT.glob("streams/**/*.py"), *ROOT.glob("exporters/**/*.py")]
    code = "\n".join(path.read_text() for path in [*sources, ROOT / "cli/run/exporter.py"])
    for name in re.findall(
        r"`slowrank_(\w+(?:_total|_seconds|_records|_stalled|_up|_waiting|_connected))`", PAGE
    ):
        stem = name.removesuffix("_total").removeprefix("exporter_")
        assert stem in code, name
