"""``slowrank silence``: add, list and expire silences over the API."""

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from urllib.parse import quote

import typer

from cli.admin.tables import Output, OutputOption, View, show
from cli.remote.client import KeyOption, UrlOption, client, fail, printable

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
    body = {
        "matchers": [_matcher(text) for text in matchers],
        "endsAt": (datetime.now(UTC) + _duration(for_)).isoformat(),
        "comment": comment,
    }
    with client(url, key) as api:
        made = api.call("POST", "/silences", json=body)
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
        items = [s for s in api.pages("/silences") if every or s["status"]["state"] != "expired"]
    show(items, output, View(_COLUMNS, "no silences: add one with `slowrank silence add`"))


@app.command()
def expire(
    silence_id: Annotated[str, typer.Argument(help="As `slowrank silence list` shows it.")],
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """End a silence now."""
    with client(url, key) as api:
        api.call("DELETE", f"/silences/{quote(silence_id, safe='')}")
    typer.echo(f"expired {printable(silence_id)}")


def _matcher(text: str) -> dict[str, Any]:
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


def _duration(text: str) -> timedelta:
    found = _DURATION.fullmatch(text)
    if found is None:
        fail(f"{text!r} is not a duration: use 30m, 4h, 2d or 1w")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def _shown(matcher: Any) -> str:
    operator = ("=" if matcher["isEqual"] else "!") + ("~" if matcher["isRegex"] else "")
    return f"{matcher['name']}{'!=' if operator == '!' else operator}{matcher['value']}"


_COLUMNS = {
    "id": lambda s: s["id"],
    "state": lambda s: s["status"]["state"],
    "until": lambda s: s["endsAt"],
    "matchers": lambda s: " ".join(_shown(matcher) for matcher in s["matchers"]),
    "by": lambda s: s["createdBy"],
    "comment": lambda s: s["comment"],
}
