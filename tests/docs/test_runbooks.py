"""docs/runbooks.md: one section for each kind of finding, all in one form, with commands that exist."""

import re
from pathlib import Path

import pytest

from alerts.kinds import KINDS, row_of
from alerts.xid_kinds import XID_KINDS
from api.pages.routes.runbooks import runbooks
from cli import COMMANDS

PAGE = (Path(__file__).resolve().parents[2] / "docs/runbooks.md").read_text()
SECTIONS = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))
PARTS = ["Means.", "Confirm.", "Do.", "Is not.", "Ignore when."]
each_section = pytest.mark.parametrize("text", SECTIONS.values(), ids=SECTIONS)


def test_every_kind_of_finding_has_a_runbook():
    """The sections are the rows that a finding may have, no more and no less."""
    assert list(SECTIONS) == [name for name, kind in KINDS.items() if kind.reported_as == "finding"]


def test_every_name_that_findings_have_leads_to_a_section():
    """Also XIDs without a row of their own, recovery actions, and what slowrank reports about itself."""
    names = [*XID_KINDS, "xid.9999", "self.lag", "self.dead_letters", "self.webhook_failing"]
    assert {row_of(name) for name in names} == {"xid", "xid.79", "self"}
    assert row_of("unheard-of.kind") == "unheard-of.kind"


@each_section
def test_a_runbook_has_all_parts_in_order_and_is_short(text):
    """What it means, three commands that confirm it, what to do, what it is not, when to ignore it."""
    assert re.findall(r"^\*\*(.+?)\*\*", text, re.M) == PARTS
    [block] = re.findall(r"^```console\n(.*?)^```", text, re.M | re.S)
    assert [line[:2] for line in block.splitlines()] == ["$ "] * 3
    assert len(text.split()) < 200


@each_section
def test_the_commands_of_slowrank_exist(text):
    """Anything after `slowrank` in a command is one of its commands."""
    assert set(re.findall(r"(?:\$ |`)slowrank ([a-z]+)", text)) <= set(COMMANDS)


def test_the_api_serves_the_same_sections():
    """Each as HTML, without the Markdown of links and emphasis."""
    served = runbooks()
    assert list(served) == list(SECTIONS)
    for html in served.values():
        assert html.startswith("<p><strong>Means.</strong>")
        assert not re.search(r"\]\(|\*\*|<script|```", html)
