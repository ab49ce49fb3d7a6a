"""``slowrank audit``."""

from typing import Annotated

import typer

from cli.admin.remote import config_dir, fail, read_text


def audit(
    dsn: Annotated[
        str | None,
        typer.Option(help="Database URL; else SLOWRANK_DATABASE_URL, else that of a running `slowrank up`."),
    ] = None,
) -> None:
    """Verify the hash chain of the audit log; exit status 1 when an entry was changed or removed."""
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


def _dsn() -> str:
    """Return the database of the settings, else that of a running ``slowrank up``. Raises ``ValueError``."""
    from cli.admin.config import load_settings

    settings = load_settings()
    if settings.database_url is None and settings.database_url_file is None:
        return read_text(config_dir() / "database") or settings.dsn()
    return settings.dsn()
