"""Tables for people."""

from slowrank.cli.tables import Output, show


def test_a_table_in_a_pipe_is_neither_folded_nor_cut(capsys):
    """One line a row, with all of every cell: what grep and awk need."""
    item = {name: f"{name}-" + "x" * 40 for name in ("id", "node", "kind", "job")}
    show([item], Output.table, {name: lambda row, n=name: row[n] for name in item}, "none")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[1].split() == list(item.values())
