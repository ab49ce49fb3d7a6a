"""Tables for people."""

import json
from itertools import islice
from operator import itemgetter
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cli.admin.tables import Output, View, changes, first, show, shown


def test_a_table_in_a_pipe_is_neither_folded_nor_cut(capsys):
    """One line a row, with all of every cell: what grep and awk need."""
    item = {name: f"{name}-" + "x" * 40 for name in ("id", "node", "kind", "job")}
    columns = {name: itemgetter(name) for name in item}
    show([item], Output.table, View(columns, "none"))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[1].split() == list(item.values())


VIEW = View({"id": lambda row: row["id"]}, "none", more={"job": lambda row: row["job"]})
ITEMS: list[dict[str, Any]] = [{"id": "a", "job": "j: 'x'"}, {"id": "b", "job": None}]


def test_wide_is_the_table_with_more_columns():
    """What is not there is a dash."""
    assert shown(ITEMS, Output.table, VIEW).splitlines() == ["ID", "a", "b"]
    assert shown(ITEMS, Output.wide, VIEW).splitlines() == ["ID  JOB", "a   j: 'x'", "b   -"]
    assert shown([], Output.wide, VIEW) == "none"


@pytest.mark.parametrize(
    ("output", "read"),
    [
        (Output.json, json.loads),
        (Output.yaml, yaml.safe_load),
        (Output.ndjson, lambda text: [json.loads(line) for line in text.splitlines()]),
    ],
)
def test_programs_read_all_of_it(output, read):
    """Every form holds the items as they are, and none where there are none."""
    assert read(shown(ITEMS, output, VIEW)) == ITEMS
    assert read(shown([], output, VIEW)) == []


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(values)
def test_yaml_equals_json(value):
    """Nothing in a string is taken for structure, and no number for a string."""
    assert yaml.safe_load(shown([value], Output.yaml, VIEW)) == [value]


def test_what_is_watched_is_printed_when_it_changes():
    """All rows at first, then only changed ones."""
    texts = iter(["a", "a", "b", "b", "a"])
    paused = []
    assert list(islice(changes(lambda: next(texts), lambda: paused.append(1)), 3)) == ["a", "b", "a"]
    assert len(paused) == 4


def test_what_is_cut_is_reported():
    """As many as asked for; a remark only where there are more."""
    assert first(iter("ab"), 2) == (["a", "b"], "")
    items, remark = first(iter("abc"), 2)
    assert items == ["a", "b"]
    assert "--limit" in remark
