"""A progress bar on stderr for work that takes long; nothing where stderr is no terminal."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

_Item = TypeVar("_Item")


def tracked(items: Sequence[_Item], what: str) -> Iterator[_Item]:
    """Yield the items, with a bar that shows how many have been taken."""
    if not _shown():
        yield from items
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(items, what, console=Console(stderr=True), transient=True)


@contextmanager
def busy(what: str) -> Iterator[None]:
    """Show that work of unknown length goes on."""
    if not _shown():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield


def _shown() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()
