"""What commands print: a table for people, JSON and NDJSON for programs; nothing in it is ever markup."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer

from slowrank.cli.remote import printable

Row = Mapping[str, Any]


class Output(StrEnum):
    """The forms of ``-o``."""

    table = "table"
    json = "json"
    ndjson = "ndjson"


OutputOption = Annotated[Output, typer.Option("-o", "--output", help="table, json or ndjson.")]


def show(items: Sequence[Row], output: Output, columns: Mapping[str, Any], empty: str) -> None:
    """Print ``items``; ``columns`` maps a heading to a function of an item, ``empty`` is said of none."""
    if output is Output.json:
        typer.echo(json.dumps(list(items), indent=2))
    elif output is Output.ndjson:
        for item in items:
            typer.echo(json.dumps(item))
    elif not items:
        typer.echo(empty)
    else:
        _table(columns, ([cell(item) for cell in columns.values()] for item in items))


def ago(text: str | None, now: datetime | None = None) -> str:
    """Return how long an RFC 3339 time lies back, such as ``9m``."""
    if not text:
        return "-"
    seconds = ((now or datetime.now(UTC)) - datetime.fromisoformat(text)).total_seconds()
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if abs(seconds) >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


def _table(headings: Iterable[str], rows: Iterable[Sequence[object]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading.upper(), overflow="fold")
    for row in rows:
        table.add_row(*(Text("-" if cell is None else printable(cell)) for cell in row))
    console = Console(markup=False, highlight=False, emoji=False)
    # A pipe has no width: give it all it needs, so that nothing is folded or cut.
    console.print(table, width=None if console.is_terminal else 400)
