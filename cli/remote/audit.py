"""``slowrank audit``: verify the audit log's hash chain, and list its entries over the API."""

import json
from typing import Annotated

import typer

from cli.admin.tables import Output, OutputOption, View, first, note, show
from cli.remote.client import KeyOption, UrlOption, client, config_dir, fail, read_text
from slowrank.client import access

app = typer.Typer(help="Verify and list the audit log.", add_completion=False)


@app.callback(invoke_without_command=True)
def _verify(
    context: typer.Context,
    dsn: Annotated[
        str | None,
        typer.Option(help="Database URL; else SLOWRANK_DATABASE_URL, else that of a running `slowrank up`."),
    ] = None,
) -> None:
    """Verify the hash chain of the audit log; exit status 1 when an entry was changed or removed."""
    if context.invoked_subcommand is not None:
        return
    import psycopg

    from store.access.audit import first_broken

    try:
        with psycopg.connect(dsn if dsn is not None else _dsn(), autocommit=True) as conn:
            broken = first_broken(conn)
    except (ValueError, OSError) as error:
        fail(str(error))
    except psycopg.Error as error:
        fail(
            f"the audit log cannot be read: {str(error).strip()}\nName its database with --dsn or "
            "SLOWRANK_DATABASE_URL; without them it is that of a running `slowrank up`."
        )
    if broken is not None:
        typer.secho(
            f"entry {broken} does not match the hash of the one before: an entry was changed or removed",
            err=True,
        )
        raise typer.Exit(1)
    typer.echo("the hash chain of the audit log is intact")


@app.command("list")
def list_entries(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of entries.")] = 50,
    output: OutputOption = Output.table,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """List who did what, newest first; needs a key with keys:admin."""
    with client(url, key) as api:
        entries, cut = first(api.each(access.audit(limit=min(limit + 1, 1000))), limit)
    show(entries, output, View(_COLUMNS, "no entries"))
    note(cut)


_COLUMNS = {
    "seq": lambda e: e["seq"],
    "at": lambda e: e["at"],
    "actor": lambda e: e["actor"],
    "action": lambda e: e["action"],
    "target": lambda e: e["target"],
    "detail": lambda e: json.dumps(e["detail"]) if e.get("detail") else "-",
}


def _dsn() -> str:
    """Return the database of the settings, else that of a running ``slowrank up``. Raises ``ValueError``."""
    from cli.admin.config import load_settings

    settings = load_settings()
    if settings.database_url is None and settings.database_url_file is None:
        return read_text(config_dir() / "database") or settings.dsn()
    return settings.dsn()
