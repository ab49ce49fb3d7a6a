"""``slowrank webhook``: add, change, test and inspect webhooks over the API."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from alerts.notify import DEFAULT_EVENTS, EventType
from api.delivery.receivers import registry
from cli.admin.tables import Output, OutputOption, View, ago, first, note, show
from cli.remote.client import KeyOption, UrlOption, client, fail, printable, read_text
from cli.remote.silence import duration, matcher
from slowrank.client import delivery
from slowrank.client.objects import Severity

if TYPE_CHECKING:
    from slowrank.client import Client

app = typer.Typer(
    help="Add, test and inspect webhooks over the API.", no_args_is_help=True, add_completion=False
)

WebhookId = Annotated[str, typer.Argument(help="As `slowrank webhook list` shows it.")]
OnlyWebhookId = Annotated[
    str | None, typer.Argument(help="As `slowrank webhook list` shows it; not needed when there is one only.")
]
SecretFile = Annotated[
    Path | None,
    typer.Option(help="File with a secret that the receiver issued: PagerDuty's key, a Slack bot's token."),
]


def _receiver(name: str) -> str:
    try:
        return registry.receiver_named(name).name
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


@app.command()
def add(
    target: Annotated[
        str, typer.Argument(metavar="URL", help="Address of the receiver; for e-mail mailto:NAME@DOMAIN.")
    ],
    format_: Annotated[
        str, typer.Option("--format", parser=_receiver, metavar="NAME", help=", ".join(registry.names()))
    ] = "standard",
    min_severity: Annotated[
        Severity, typer.Option(help="Only findings of this severity and above.")
    ] = "warning",
    kind: Annotated[list[str] | None, typer.Option(help="Only these kinds; may be repeated.")] = None,
    event: Annotated[
        list[str] | None,
        typer.Option(
            help="Only these types, such as finding.acknowledged; may be repeated. "
            "Without it: opened, reopened, escalated and resolved."
        ),
    ] = None,
    match: Annotated[
        list[str] | None,
        typer.Option(help="Only what matches, such as rack=r7; all given must."),
    ] = None,
    wait: Annotated[
        str | None, typer.Option(help="Send once a finding has stood so long: 30s, 15m (group_wait).")
    ] = None,
    unless_acknowledged: Annotated[
        bool, typer.Option("--unless-acknowledged", help="Send nothing that was acknowledged meanwhile.")
    ] = False,
    interval: Annotated[
        str | None, typer.Option(help="Least time between two messages about a finding (group_interval).")
    ] = None,
    repeat: Annotated[
        str | None, typer.Option(help="Remind so often of what nobody acknowledges: 4h (repeat_interval).")
    ] = None,
    template_file: Annotated[
        Path | None, typer.Option(help="JSON file with the body of the format template.")
    ] = None,
    secret_file: SecretFile = None,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Add a webhook and print its signing secret, once."""
    filters = {"min_severity": min_severity, "kinds": kind or [], "events": event or []}
    body: dict[str, Any] = {"format": format_, **filters, "matchers": [matcher(text) for text in match or ()]}
    body |= {"unless_acknowledged": unless_acknowledged}
    for name, text in (("wait", wait), ("interval", interval), ("repeat", repeat)):
        if text is not None:
            body[f"{name}_seconds"] = int(duration(text).total_seconds())
    if template_file is not None:
        body["template"] = _template_in(template_file)
    if secret_file is not None:
        body["secret"] = _secret_in(secret_file)
    with client(url, key) as api:
        others = list(api.each(delivery.webhooks()))
        made = api.send(delivery.add_webhook(target, **body))
    # Of an address the API shows the host and the end of the path.
    alike = [hook["id"] for hook in others if hook["url"] == made["url"]]
    typer.echo(f"added {made['id']}")
    if "secret" in made:
        typer.echo(f"secret {made['secret']}")
        typer.echo("Keep the secret: it is not shown again. Receivers verify deliveries with it", err=True)
        typer.echo("(Standard Webhooks).", err=True)
    if alike:
        note(
            f"warning: {', '.join(alike)} has the same address, {printable(made['url'])}: what both match "
            f"is sent twice. `slowrank webhook remove {made['id']}` takes this one back."
        )
    typer.echo(f"Next: slowrank webhook test {made['id']}", err=True)


@app.command("list")
def list_webhooks(output: OutputOption = Output.table, url: UrlOption = None, key: KeyOption = None) -> None:
    """List the webhooks."""
    with client(url, key) as api:
        items = list(api.each(delivery.webhooks()))
    show(items, output, View(_WEBHOOKS, "no webhooks: add one with `slowrank webhook add URL`"))


@app.command("test")
def send_test(webhook_id: OnlyWebhookId = None, url: UrlOption = None, key: KeyOption = None) -> None:
    """Send a signed test delivery now and print the receiver's answer."""
    with client(url, key) as api:
        result = api.send(delivery.send_test(_only(api, webhook_id)))
    milliseconds = 1000 * result["seconds"]
    if not result["delivered"]:
        answer = f"HTTP {result['status']}" if result["status"] else result["error"]
        fail(f"not delivered after {milliseconds:.0f} ms: {answer}", code=1)
    protocol = result.get("protocol", "http").upper()
    typer.echo(f"delivered in {milliseconds:.0f} ms ({protocol} {result['status']})")


@app.command()
def deliveries(
    webhook_id: OnlyWebhookId = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of deliveries.")] = 50,
    output: OutputOption = Output.table,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """List the latest deliveries of a webhook."""
    with client(url, key) as api:
        wanted = delivery.deliveries(_only(api, webhook_id), limit=min(limit + 1, 1000))
        items, cut = first(api.each(wanted), limit)
    show(items, output, View(_DELIVERIES, "nothing was delivered yet: try `slowrank webhook test`"))
    note(cut)


@app.command()
def retry(
    delivery_id: Annotated[str, typer.Argument(help="As `slowrank webhook deliveries` shows it.")],
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Send a delivery again with the same webhook-id, or a newer state of its finding if there is one."""
    with client(url, key) as api:
        due = api.send(delivery.retry(delivery_id))["id"]
    newer = "" if due == delivery_id else f", a newer state of the finding than {printable(delivery_id)}"
    typer.echo(f"{printable(due)} is due again{newer}")


@app.command()
def enable(webhook_id: WebhookId, url: UrlOption = None, key: KeyOption = None) -> None:
    """Enable a webhook that was disabled, by a person or because its receiver answered 410 Gone."""
    _change(webhook_id, {"enabled": True}, (url, key))
    typer.echo(f"enabled {printable(webhook_id)}\nNext: slowrank webhook test {printable(webhook_id)}")


@app.command()
def disable(webhook_id: WebhookId, url: UrlOption = None, key: KeyOption = None) -> None:
    """Disable a webhook; nothing is sent to it until it is enabled."""
    _change(webhook_id, {"enabled": False}, (url, key))
    typer.echo(f"disabled {printable(webhook_id)}")


@app.command()
def rotate(
    webhook_id: WebhookId, secret_file: SecretFile = None, url: UrlOption = None, key: KeyOption = None
) -> None:
    """Replace the secret of a webhook and print the new one, once.

    Deliveries are signed with both for a day. A secret that the receiver issued is replaced at once.
    """
    given = None if secret_file is None else _secret_in(secret_file)
    with client(url, key) as api:
        made = api.send(delivery.rotate_secret(webhook_id, given))
    if "secret" in made:
        typer.echo(f"secret {made['secret']}")
        typer.echo("Keep the secret: it is not shown again.", err=True)
    typer.echo(f"The old secret is valid until {printable(made['old_until'])}.", err=True)


@app.command()
def events(
    webhook_id: WebhookId,
    only: Annotated[
        list[str] | None,
        typer.Option("--set", help="Deliver these types only, such as finding.opened; may be repeated."),
    ] = None,
    default: Annotated[bool, typer.Option("--default", help="Deliver the default types.")] = False,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Show which types of events a webhook delivers, or change that."""
    if only and default:
        fail("--set and --default exclude each other")
    if only or default:
        # A webhook that names no type delivers the default ones.
        found = _change(webhook_id, {"events": only or []}, (url, key))
    else:
        with client(url, key) as api:
            found = api.send(delivery.webhook(webhook_id))
    delivered = set(found["events"]) or DEFAULT_EVENTS
    for name in get_args(EventType):
        typer.echo(f"{'deliver' if name in delivered else '-':<7}  {name}")


def _change(webhook_id: str, changes: dict[str, Any], reach: tuple[str | None, str | None]) -> Any:
    with client(*reach) as api:
        return api.send(delivery.change_webhook(webhook_id, changes))


def _template_in(file: Path) -> Any:
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError) as error:
        fail(f"no JSON can be read from {file}: {error}")


def _secret_in(file: Path) -> str:
    return read_text(file) or fail(f"no secret can be read from {file}")


@app.command()
def remove(webhook_id: WebhookId, url: UrlOption = None, key: KeyOption = None) -> None:
    """Remove a webhook; its pending deliveries are dropped."""
    with client(url, key) as api:
        api.send(delivery.remove_webhook(webhook_id))
    typer.echo(f"removed {printable(webhook_id)}")


def _only(api: "Client", webhook_id: str | None) -> str:
    """Return the id; by default that of the only webhook."""
    if webhook_id is not None:
        return webhook_id
    found = [item["id"] for item in api.each(delivery.webhooks())]
    if not found:
        fail("there is no webhook: add one with `slowrank webhook add URL`.")
    if len(found) > 1:
        fail(f"there are {len(found)} webhooks: name one of {', '.join(found)} (`slowrank webhook list`).")
    return found[0]


_WEBHOOKS = {
    "id": lambda w: w["id"],
    "status": lambda w: w["status"] + (f" {ago(w['failing_since'])}" if "failing_since" in w else ""),
    "format": lambda w: w["format"],
    "min severity": lambda w: w["min_severity"],
    "kinds": lambda w: ",".join(w["kinds"]) or "all",
    "url": lambda w: w["url"],
    "added": lambda w: ago(w["created_at"]),
}
_DELIVERIES = {
    "id": lambda d: d["id"],
    "event": lambda d: d["event_type"],
    "finding": lambda d: d.get("finding_id"),
    "status": lambda d: d["status"],
    "attempts": lambda d: d["attempts"],
    "answer": lambda d: d.get("last_status") or d.get("last_error") or "-",
    "created": lambda d: ago(d["created_at"]),
    "next try": lambda d: d.get("next_attempt_at") or "-",
}
