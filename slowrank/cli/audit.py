"""``slowrank audit``."""

from typing import Annotated

import typer

from slowrank.cli.remote import fail


def audit(
    dsn: Annotated[
        str | None, typer.Option(help="Database URL; SLOWRANK_DATABASE_URL when left out.")
    ] = None,
) -> None:
    """Check the chain of the audit log; exit status 1 when an entry was changed or removed."""
    import psycopg

    from slowrank.cli.config import load_settings
    from store.audit import first_broken

    try:
        with psycopg.connect(dsn if dsn is not None else load_settings().dsn(), autocommit=True) as conn:
            broken = first_broken(conn)
    except (ValueError, OSError) as error:
        fail(str(error))
    except psycopg.Error as error:
        fail(f"the audit log cannot be read: {str(error).strip()}")
    if broken is not None:
        typer.secho(
            f"entry {broken} does not follow from the one before: something was changed or removed", err=True
        )
        raise typer.Exit(1)
    typer.echo("every entry of the audit log is as it was written")
