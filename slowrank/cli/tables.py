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
    """Print columns as wide as their widest cell: a folded id could be neither copied nor searched for."""
    table = [[heading.upper() for heading in headings]]
    table += [["-" if cell is None else printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        typer.echo("  ".join(map(str.ljust, row, widths)).rstrip())
