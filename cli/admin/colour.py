"""Colours of severities on terminals. ``typer.echo`` removes them where the output is no terminal."""

import os

import typer

_SEVERITIES = {
    "critical": {"fg": typer.colors.RED, "bold": True},
    "error": {"fg": typer.colors.RED},
    "warning": {"fg": typer.colors.YELLOW},
    "info": {"fg": typer.colors.CYAN},
}


def by_severity(text: str, severity: str) -> str:
    """Return text in the colour of a severity; as it is under ``NO_COLOR`` (no-color.org) and for others."""
    style = _SEVERITIES.get(severity)
    if style is None or os.environ.get("NO_COLOR"):
        return text
    return typer.style(text, **style)  # type: ignore[arg-type]  # a table of keyword arguments
