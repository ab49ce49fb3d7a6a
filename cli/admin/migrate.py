"""``slowrank migrate``."""

from typing import Annotated

import typer

from cli.remote.client import fail


def migrate(
    dsn: Annotated[
        str | None, typer.Option(help="Database URL; SLOWRANK_DATABASE_URL when left out.")
    ] = None,
) -> None:
    """Apply the missing migrations to the database; running it again changes nothing."""
    import psycopg

    from cli.admin.config import load_settings
    from store.migrate import MigrationError, bundled
    from store.migrate import migrate as apply

    try:
        applied = apply(dsn if dsn is not None else load_settings().dsn())
    except (ValueError, OSError, MigrationError) as error:
        fail(str(error))
    except psycopg.OperationalError as error:
        fail(f"the database does not answer: {str(error).strip()}\nCheck the URL and that the server runs.")
    except psycopg.Error as error:
        # Without an SQLSTATE the error is the client's, which could not parse the URL.
        why = (
            "the database refused a migration, which was rolled back"
            if error.sqlstate
            else "not a database URL"
        )
        fail(f"{why}: {str(error).strip()}")
    for name in applied:
        typer.echo(f"applied {name}")
    typer.echo(f"schema is at {bundled()[-1].name}" + ("" if applied else ", nothing to do"))
