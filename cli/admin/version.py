"""``slowrank version``."""

import typer

from slowrank import __version__


def version() -> None:
    """Print the version."""
    typer.echo(f"slowrank {__version__}")
