"""Typed client of slowrank's HTTP API, in blocking and asynchronous form.

A request is a value, made by a function of ``findings``, ``cluster``, ``delivery`` or ``access`` and carried
out by either client, so that both forms have the same requests and the same types:

>>> from slowrank.client import Client, findings
>>> request = findings.listed(status=["open"], node="gpu-[001-128]")
>>> request.method, request.path, request.params["status"]
('GET', '/findings', ['open'])

``Client(url, key).each(request)`` then yields the findings of all pages. Needs httpx (``pip install
'slowrank[client]'``); answers are plain JSON objects, described by the types in ``objects``.
"""

from typing import TYPE_CHECKING, Any

from slowrank.client.errors import ApiError, NotSlowrank
from slowrank.client.events import Event
from slowrank.client.request import Request

if TYPE_CHECKING:
    from slowrank.client.asynchronous import AsyncClient
    from slowrank.client.blocking import Client

__all__ = ["ApiError", "AsyncClient", "Client", "Event", "NotSlowrank", "Request"]


# Lazily (PEP 562): making a request, as the commands do before they are carried out, needs no httpx.
def __getattr__(name: str) -> Any:
    if name == "Client":
        from slowrank.client.blocking import Client

        return Client
    if name == "AsyncClient":
        from slowrank.client.asynchronous import AsyncClient

        return AsyncClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
