"""A request as a value: what is sent, and of which type the answer is."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from slowrank.client.errors import NoId

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Request(Generic[Answer]):
    """One request below ``/api/v1``; ``Answer`` is the type of its decoded answer.

    ``params`` holds no None; ``json`` is the body, or None for none; ``content`` one that is sent as it is,
    of the type that ``headers`` name.
    """

    method: str
    path: str
    params: Mapping[str, Any] = field(default_factory=dict)
    json: object = None
    content: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def after(self, cursor: str) -> "Request[Answer]":
        """Return the request of the page that begins at a cursor."""
        return replace(self, params={**self.params, "cursor": cursor})


def get(path: str, **params: Any) -> Request[Any]:
    """Return a GET; parameters that are None are left out, and ``from_`` is sent as ``from``."""
    known = {name.rstrip("_"): value for name, value in params.items() if value is not None}
    return Request("GET", path, known)


def part(text: str) -> str:
    """Return an id as one part of a path. Raises ``NoId`` for an empty one."""
    if not text:
        raise NoId("no id given")
    return quote(text, safe="")
