"""``slowrank dlq``: list and show dead letters, the messages that could not be read."""

import asyncio
import re
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from cli.remote.client import fail

if TYPE_CHECKING:
    from slowrank.telemetry import DeadLetter

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Inspect dead letters: messages that could not be read."
)

_POSITION = re.compile(r"(.+):(\d+):(\d+)")


@app.command("list")
def list_letters(
    reason: Annotated[str | None, typer.Option(help="Only letters with this reason.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of letters, the newest.")] = 50,
) -> None:
    """List the newest dead letters, and count them by reason."""
    letters = [x for x in _letters() if reason is None or x.reason == reason]
    letters.sort(key=lambda x: (x.ts, x.topic, x.partition, x.offset))
    for letter in letters[-limit:]:
        typer.echo(
            f"{_when(letter)}  {_position(letter):<28}  {letter.reason:<18}  {_plain(letter.detail)[:80]}"
        )
    if len(letters) > limit:
        typer.secho(f"only the newest {limit} of {len(letters)} are listed: raise --limit", err=True)
    for (topic, why), count in sorted(Counter((x.topic, x.reason) for x in letters).items()):
        typer.secho(f"{count:>8}  {topic}  {why}", err=True)
    if not letters:
        typer.secho("no dead letters", err=True)


@app.command()
def show(
    position: Annotated[str, typer.Argument(help="topic:partition:offset, as `slowrank dlq list` shows it.")],
) -> None:
    """Show one dead letter with the start of its payload."""
    match = _POSITION.fullmatch(position)
    if match is None:
        fail(f"{position!r} is not a position: use topic:partition:offset, such as node-samples:0:1234")
    wanted = (match[1], int(match[2]), int(match[3]))
    letter = next((x for x in _letters() if (x.topic, x.partition, x.offset) == wanted), None)
    if letter is None:
        fail(f"no dead letter for {position}; `slowrank dlq list` shows those there are")
    typer.echo(f"position {_position(letter)}\ntime     {_when(letter)}\nreason   {letter.reason}")
    typer.echo(f"detail   {_plain(letter.detail)}\npayload  {len(letter.payload)} bytes kept")
    for start in range(0, len(letter.payload), 16):
        piece = letter.payload[start : start + 16]
        text = "".join(chr(b) if 32 <= b < 127 else "." for b in piece)
        typer.echo(f"{start:06x}  {piece.hex(' '):<47}  {text}")


def _letters() -> "list[DeadLetter]":
    from cli.admin.config import load_settings
    from streams.runtime.kafka.dead_letter_reader import DeadLettersProblem, dead_letters

    settings = load_settings()
    try:
        return asyncio.run(dead_letters(settings.kafka_bootstrap, settings.topic_prefix))
    except DeadLettersProblem as error:
        fail(str(error))


def _position(letter: "DeadLetter") -> str:
    return f"{letter.topic}:{letter.partition}:{letter.offset}"


def _when(letter: "DeadLetter") -> str:
    return datetime.fromtimestamp(letter.ts, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _plain(text: str) -> str:
    # Received text may hold control characters for the terminal.
    return "".join(c if c.isprintable() else "\ufffd" for c in text)
