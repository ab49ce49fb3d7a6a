"""``slowrank silence``: add, list and expire silences over the API."""

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.admin.tables import Output, OutputOption, View, show
from cli.remote.client import KeyOption, UrlOption, client, fail, printable
from slowrank.client import delivery

if TYPE_CHECKING:
    from slowrank.client.objects import Matcher

app = typer.Typer(
    help="Add, list and expire silences over the API.", no_args_is_help=True, add_completion=False
)

# The operators of amtool: equal, not equal, matches and does not match a regular expression.
_MATCHER = re.compile(r"(?P<name>[a-z_]+)(?P<operator>=~|!~|!=|=)(?P<value>.*)", re.DOTALL)
_DURATION = re.compile(r"(\d{1,6})([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@app.command()
def add(
    matchers: Annotated[
        list[str],
        typer.Argument(
            metavar="MATCHER...",
            help="Such as node=gpu-0423, kind=~throttle.*, severity!=critical; all must hold.",
        ),
    ],
    for_: Annotated[str, typer.Option("--for", help="How long: 30m, 4h, 2d, 1w.")],
    comment: Annotated[str, typer.Option(help="Why.")],
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Keep findings that match from webhooks for a time; they are stored and listed all the same."""
    wanted = [matcher(text) for text in matchers]
    ends_at = (datetime.now(UTC) + duration(for_)).isoformat()
    with client(url, key) as api:
        made = api.send(delivery.add_silence(wanted, ends_at, comment))
    typer.echo(f"added {made['id']}, until {printable(made['endsAt'])}")


@app.command("list")
def list_silences(
    every: Annotated[bool, typer.Option("--all", help="Those that have ended too.")] = False,
    output: OutputOption = Output.table,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """List silences that hold or will hold, latest end first."""
    with client(url, key) as api:
        items = [s for s in api.each(delivery.silences()) if every or s["status"]["state"] != "expired"]
    show(items, output, View(_COLUMNS, "no silences: add one with `slowrank silence add`"))


@app.command()
def expire(
    silence_id: Annotated[str, typer.Argument(help="As `slowrank silence list` shows it.")],
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """End a silence now."""
    with client(url, key) as api:
        api.send(delivery.expire_silence(silence_id))
    typer.echo(f"expired {printable(silence_id)}")


def matcher(text: str) -> "Matcher":
    """Return the matcher that a word of the command line means; exits where it means none."""
    found = _MATCHER.fullmatch(text)
    if found is None:
        fail(f"{text!r} is not a matcher: use name=value, name!=value, name=~regex or name!~regex")
    operator = found["operator"]
    return {
        "name": found["name"],
        "value": found["value"],
        "isRegex": "~" in operator,
        "isEqual": "!" not in operator,
    }


def duration(text: str) -> timedelta:
    """Return a length of time such as ``4h``; exits where it is none."""
    found = _DURATION.fullmatch(text)
    if found is None:
        fail(f"{text!r} is not a duration: use 30m, 4h, 2d or 1w")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def shown(matcher: Any) -> str:
    """Return a matcher as it is written on the command line."""
    operator = ("=" if matcher["isEqual"] else "!") + ("~" if matcher["isRegex"] else "")
    return f"{matcher['name']}{'!=' if operator == '!' else operator}{matcher['value']}"


_COLUMNS = {
    "id": lambda s: s["id"],
    "state": lambda s: s["status"]["state"],
    "until": lambda s: s["endsAt"],
    "matchers": lambda s: " ".join(map(shown, s["matchers"])),
    "by": lambda s: s["createdBy"],
    "comment": lambda s: s["comment"],
}
