"""``slowrank migrate``."""

from typing import Annotated

import typer

from slowrank.cli.remote import fail


def migrate(
    dsn: Annotated[
        str | None, typer.Option(help="Database URL; SLOWRANK_DATABASE_URL when left out.")
    ] = None,
) -> None:
    """Bring the database schema up to date; running it again changes nothing."""
    import psycopg

    from slowrank.cli.config import load_settings
    from store.migrate import MigrationError, bundled
    from store.migrate import migrate as apply

    try:
        applied = apply(dsn if dsn is not None else load_settings().dsn())
    except (ValueError, OSError, MigrationError) as error:
        fail(str(error))
    except psycopg.OperationalError as error:
        fail(f"the database does not answer: {str(error).strip()}\nIs the URL right and the server up?")
    except psycopg.Error as error:
        # Without a state it is the client's, which could not read the URL.
        why = (
            "the database refused a migration, which was rolled back"
            if error.sqlstate
            else "not a database URL"
        )
        fail(f"{why}: {str(error).strip()}")
    for name in applied:
        typer.echo(f"applied {name}")
    typer.echo(f"schema is at {bundled()[-1].name}" + ("" if applied else ", nothing to do"))
