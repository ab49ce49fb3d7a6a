"""``slowrank silence``: add, list and expire silences over the API."""

import re
from datetime import UTC, datetime, time, timedelta
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
    weekly: Annotated[
        str | None, typer.Option(metavar="DAYS", help="A maintenance window on days such as sat,sun.")
    ] = None,
    at: Annotated[str, typer.Option(metavar="HH:MM", help="When a weekly one begins.")] = "00:00",
    time_zone: Annotated[str, typer.Option(help="Of --at, such as Europe/Berlin.")] = "UTC",
    weeks: Annotated[int, typer.Option(min=1, max=52, help="For how many weeks.")] = 52,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Keep findings that match from webhooks for a time; they are stored and listed all the same."""
    wanted = [matcher(text) for text in matchers]
    lasts, now = duration(for_), datetime.now(UTC)
    if not lasts:
        fail(f"--for {for_}: a silence of no length mutes nothing; use 30m, 4h, 2d or 1w")
    if weekly is None:
        request = delivery.add_silence(wanted, (now + lasts).isoformat(), comment)
    else:
        starts_at = _today_at(at, time_zone, now)
        recurrence = {
            "weekdays": [day.strip().lower()[:3] for day in weekly.split(",")],
            "duration_seconds": int(lasts.total_seconds()),
            "time_zone": time_zone,
        }
        ends_at = (starts_at + timedelta(weeks=weeks)).isoformat()
        request = delivery.add_silence(
            wanted, ends_at, comment, startsAt=starts_at.isoformat(), recurrence=recurrence
        )
    with client(url, key) as api:
        made = api.send(request)
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


def _today_at(hour: str, time_zone: str, now: datetime) -> datetime:
    """Return that hour of the wall of today in a time zone; exits where there is no such hour or zone."""
    from zoneinfo import ZoneInfo

    try:
        zone = UTC if time_zone == "UTC" else ZoneInfo(time_zone)
        return datetime.combine(now.astimezone(zone).date(), time.fromisoformat(hour), tzinfo=zone)
    # An unknown zone is a KeyError; zoneinfo opens a file of its name.
    except (ValueError, KeyError, OSError):
        fail(f"{hour} in {time_zone!r} is no time: use --at 02:30 --time-zone Europe/Berlin")


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


def _weekly(silence: Any) -> str | None:
    recurrence = silence.get("recurrence")
    if recurrence is None:
        return None
    hours = recurrence["duration_seconds"] / 3600
    return f"{','.join(recurrence['weekdays'])} {hours:g}h ({recurrence['time_zone']})"


_COLUMNS = {
    "id": lambda s: s["id"],
    "state": lambda s: s["status"]["state"],
    "until": lambda s: s["endsAt"],
    "weekly": lambda s: _weekly(s),
    "matchers": lambda s: " ".join(map(shown, s["matchers"])),
    "by": lambda s: s["createdBy"],
    "comment": lambda s: s["comment"],
}
