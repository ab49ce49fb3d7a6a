"""``slowrank inhibition``: add, list and remove inhibition rules over the API."""

from typing import Annotated

import typer

from cli.admin.tables import Output, OutputOption, View, show
from cli.remote.client import KeyOption, UrlOption, client, printable
from cli.remote.silence import matcher, shown
from slowrank.client import delivery

app = typer.Typer(
    help="Add, list and remove inhibition rules over the API.", no_args_is_help=True, add_completion=False
)


@app.command()
def add(
    source: Annotated[list[str], typer.Option(help="Matcher of the finding that explains; may be repeated.")],
    target: Annotated[list[str], typer.Option(help="Matcher of what is held back; may be repeated.")],
    equal: Annotated[list[str], typer.Option(help="Label that both have alike, such as node; repeat it.")],
    comment: Annotated[str, typer.Option(help="Why.")],
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Keep findings from webhooks while another one, that explains them, is open."""
    rule = delivery.add_inhibition([*map(matcher, source)], [*map(matcher, target)], equal, comment)
    with client(url, key) as api:
        made = api.send(rule)
    typer.echo(f"added {made['id']}")


@app.command("list")
def list_rules(output: OutputOption = Output.table, url: UrlOption = None, key: KeyOption = None) -> None:
    """List the rules."""
    with client(url, key) as api:
        items = list(api.each(delivery.inhibitions()))
    show(items, output, View(_COLUMNS, "no rules: add one with `slowrank inhibition add`"))


@app.command()
def remove(
    inhibition_id: Annotated[str, typer.Argument(help="As `slowrank inhibition list` shows it.")],
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Remove a rule; what it held back is sent within half a minute."""
    with client(url, key) as api:
        api.send(delivery.remove_inhibition(inhibition_id))
    typer.echo(f"removed {printable(inhibition_id)}")


_COLUMNS = {
    "id": lambda rule: rule["id"],
    "source": lambda rule: " ".join(map(shown, rule["source"])),
    "target": lambda rule: " ".join(map(shown, rule["target"])),
    "equal": lambda rule: ",".join(rule["equal"]),
    "by": lambda rule: rule["createdBy"],
    "comment": lambda rule: rule["comment"],
}
