"""The page on records against the messages between stages."""

from pathlib import Path
from typing import get_args

import pytest

from slowrank.telemetry import JobEnded, StageMessage, Suspicion
from slowrank.telemetry.messages import MESSAGE_VERSION, HangSignal

PAGE = (Path(__file__).resolve().parents[2] / "docs/records.md").read_text()
SECTION = PAGE.split("## Messages between stages\n")[1].split("\n## ")[0]
MEMBERS = {member.__struct_config__.tag: member for member in (*get_args(StageMessage), JobEnded)}


@pytest.mark.parametrize("tag", MEMBERS)
def test_every_message_and_field_is_described(tag):
    """The row of a message names its fields; those of suspicions and votes have tables of their own."""
    (row,) = [line for line in SECTION.splitlines() if line.startswith(f"| `{tag}`")]
    member = MEMBERS[tag]
    text = SECTION if issubclass(member, Suspicion) else row
    names = set(member.__struct_fields__) - {"v", "cluster", "ts"}
    assert {name for name in names if f"`{name}`" not in text} == set()


def test_version_and_signals_are_described():
    """The version is today's, and each signal of a vote has a meaning."""
    assert f"version, now {MESSAGE_VERSION}" in SECTION
    assert all(f"`{signal}`" in SECTION for signal in get_args(HangSignal))
