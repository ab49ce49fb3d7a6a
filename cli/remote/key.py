"""``slowrank key``: create, list and revoke API keys over the API; create the first one in the database."""

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from cli.admin.tables import Output, OutputOption, View, ago, show
from cli.remote.client import KeyOption, UrlOption, client, fail, printable
from slowrank.client import access

app = typer.Typer(help="Create, list and revoke API keys.", no_args_is_help=True, add_completion=False)


@app.command()
def create(
    name: Annotated[str, typer.Option(help="Owner or purpose; shown in lists and in the audit log.")],
    scope: Annotated[
        list[str] | None,
        typer.Option(help="May be repeated; without it, findings:read only. `all` gives every scope."),
    ] = None,
    cluster: Annotated[list[str] | None, typer.Option(help="Only these clusters; may be repeated.")] = None,
    days: Annotated[int | None, typer.Option(min=1, help="Days until it expires; by default never.")] = None,
    dsn: Annotated[
        str | None,
        typer.Option(help="Create the key directly in this database: for the first key."),
    ] = None,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Create a key and print it, once."""
    scopes, clusters = scope or ["findings:read"], cluster or []
    if dsn is not None:
        token = _bootstrap(dsn, {"name": name, "scopes": scopes, "clusters": clusters, "days": days})
    else:
        with client(url, key) as api:
            token = api.send(access.create_key(name, scopes, clusters=clusters, days=days))["token"]
    typer.echo(token)
    typer.echo("Keep it: it is not shown again. Use it with SLOWRANK_KEY or --key.", err=True)


@app.command("list")
def list_keys(output: OutputOption = Output.table, url: UrlOption = None, key: KeyOption = None) -> None:
    """List the keys, never their secrets."""
    with client(url, key) as api:
        items = list(api.each(access.keys()))
    show(items, output, View(_COLUMNS, "no keys"))


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(help="As `slowrank key list` shows it.")],
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Revoke a key at once."""
    with client(url, key) as api:
        api.send(access.revoke_key(key_id))
    typer.echo(f"revoked {printable(key_id)}")


def _bootstrap(dsn: str, body: dict[str, Any]) -> str:
    import psycopg
    from pydantic import ValidationError

    from api.routes.keys import KeyRequest, store_key
    from api.security.auth import SCOPES

    unknown = [scope for scope in body["scopes"] if scope not in (*SCOPES, "all")]
    if unknown:
        fail(f"unknown scope {printable(unknown[0])!r}; valid are {', '.join(SCOPES)} and all")
    try:
        wanted = KeyRequest(**body)
        with psycopg.connect(dsn, connect_timeout=10) as conn:
            return store_key(conn, wanted, actor="cli", now=datetime.now(UTC))[1]
    except ValidationError as error:
        fail("; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()))
    except psycopg.errors.UndefinedTable:
        fail("this database has no slowrank schema yet; run `slowrank migrate` first")
    except psycopg.Error as error:
        fail(f"cannot use the database: {error}\nCheck --dsn and that the server runs.")


_COLUMNS = {
    "id": lambda k: k["id"],
    "name": lambda k: k["name"],
    "scopes": lambda k: " ".join(k["scopes"]),
    "clusters": lambda k: ",".join(k["clusters"]) or "all",
    "created": lambda k: ago(k["created_at"]),
    "last used": lambda k: ago(k.get("last_used_at")),
    "expires": lambda k: k.get("expires_at") or "never",
    "revoked": lambda k: ago(k.get("revoked_at")),
}
