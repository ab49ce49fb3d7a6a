"""Wrong use of the hook: counted and logged once, never raised."""

import functools
import logging
from collections.abc import Callable
from typing import ParamSpec

P = ParamSpec("P")
_log = logging.getLogger("slowrank.hook")
# Limit of distinct messages: they name exceptions, of which there may be any number.
_KINDS = 32


class Misuse:
    """Counts wrong use of the hook, and logs the first of each kind."""

    def __init__(self) -> None:
        self.total = 0
        self._seen: set[str] = set()

    def note(self, what: str) -> None:
        self.total += 1
        if what not in self._seen and len(self._seen) < _KINDS:
            self._seen.add(what)
            _log.warning("slowrank step timer: %s (training continues; logged once)", what)


def harmless(method: Callable[P, None]) -> Callable[P, None]:
    """Keep whatever goes wrong inside the hook out of the training loop: the hook's one broad except."""

    @functools.wraps(method)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(*args, **kwargs)
        except Exception as error:
            misuse.note(f"{method.__name__} failed with {type(error).__name__}")

    return guarded


misuse = Misuse()
