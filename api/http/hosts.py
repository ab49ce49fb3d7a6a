"""Nodes in queries: Slurm host lists."""

from typing import Annotated

from pydantic import Field

from api.http.problems import contradiction
from slowrank.telemetry.hostlist import expand

HostList = Annotated[
    str,
    Field(max_length=1024, min_length=1, description="A node or a Slurm host list: `gpu-[001-128,130]`."),
]


def hosts(lists: list[str]) -> tuple[str, ...]:
    """Return the nodes of several host lists, each once. Raises the 409 problem of a text that is none."""
    try:
        return tuple(dict.fromkeys(name for text in lists for name in expand(text)))
    except ValueError as error:
        raise contradiction("#/query/node", str(error)) from error
