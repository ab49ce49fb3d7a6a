"""Output of commands: a table for people; JSON, NDJSON and YAML for programs. Data is never markup."""

import json
import math
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from itertools import islice
from typing import Annotated, Any, TypeVar

import typer

from cli.remote.client import printable

# Characters that remain of a shortened cell (chosen: enough to recognise a kind or a node).
MIN_CUT = 12

Row = Mapping[str, Any]
_Shown = TypeVar("_Shown")


class Output(StrEnum):
    """Formats of ``-o``."""

    table = "table"
    wide = "wide"
    json = "json"
    ndjson = "ndjson"
    yaml = "yaml"


OutputOption = Annotated[Output, typer.Option("-o", "--output", help="table, wide, json, ndjson or yaml.")]


@dataclass(frozen=True, slots=True)
class View:
    """Columns of a table, heading to cell; ``more``: those of ``-o wide``; ``empty``: text for no items.

    ``paint`` gives the line of an item its colour. ``cut`` names columns that are shortened, in this order,
    where the table is wider than the terminal; all others are never cut, so that ids can be copied.
    """

    columns: Mapping[str, Callable[[Row], object]]
    empty: str
    more: Mapping[str, Callable[[Row], object]] = field(default_factory=dict)
    paint: Callable[[str, Row], str] = lambda line, _: line
    cut: tuple[str, ...] = ()


def show(items: Sequence[Row], output: Output, view: View) -> None:
    """Print items in a format."""
    text = shown(items, output, view)
    if text:
        typer.echo(text)


def first(items: Iterable[Any], limit: int) -> tuple[list[Any], str]:
    """Return the first ``limit`` items, and a notice where there are more (else an empty string)."""
    found = list(islice(items, limit + 1))
    cut = len(found) > limit
    return found[:limit], f"only the first {limit} are listed, there are more: raise --limit" if cut else ""


def note(text: str) -> None:
    """Print a notice on stderr, so that stdout stays machine-readable."""
    if text:
        typer.secho(text, err=True)


def shown(items: Sequence[Row], output: Output, view: View) -> str:
    """Return items in a format, without a trailing newline."""
    if output is Output.json:
        return json.dumps(list(items), indent=2)
    if output is Output.ndjson:
        return "\n".join(json.dumps(item) for item in items)
    if output is Output.yaml:
        import yaml

        # Escapes all but ASCII, as json does: no record can send control characters to a terminal.
        text: str = yaml.safe_dump(list(items), sort_keys=False, width=math.inf)
        return text.rstrip()
    if not items:
        return view.empty
    columns = {**view.columns, **(view.more if output is Output.wide else {})}
    head, *lines = _table(columns, ([cell(item) for cell in columns.values()] for item in items), view.cut)
    return "\n".join([head, *(view.paint(line, item) for line, item in zip(lines, items, strict=True))])


def changes(read: Callable[[], _Shown], pause: Callable[[], None]) -> Iterator[_Shown]:
    """Yield what ``read`` returns, at first and whenever it has changed; ``pause`` between two reads."""
    last: _Shown | None = None
    while True:
        read_now = read()
        if read_now != last:
            last = read_now
            yield read_now
        pause()


def ago(text: str | None, now: datetime | None = None) -> str:
    """Return the age of an RFC 3339 time, such as ``9m``."""
    if not text:
        return "-"
    seconds = ((now or datetime.now(UTC)) - datetime.fromisoformat(text)).total_seconds()
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if abs(seconds) >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


def _table(headings: Iterable[str], rows: Iterable[Sequence[object]], cut: Sequence[str]) -> list[str]:
    """Return the lines of a table with columns as wide as their widest cell.

    On a terminal that is narrower the columns ``cut`` are shortened; no line is wrapped, as a wrapped id
    cannot be copied or searched.
    """
    names = list(headings)
    table = [[name.upper() for name in names]]
    table += [["-" if cell is None else printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for name in cut if sys.stdout.isatty() else ():
        if name in names:
            over = sum(widths) + 2 * (len(widths) - 1) - shutil.get_terminal_size().columns
            place = names.index(name)
            widths[place] = max(widths[place] - max(over, 0), min(widths[place], MIN_CUT))
    return ["  ".join(map(_fitted, row, widths)).rstrip() for row in table]


def _fitted(text: str, width: int) -> str:
    return text.ljust(width) if len(text) <= width else f"{text[: width - 1]}…"
