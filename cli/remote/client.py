"""The commands' way to the API: its address and key, and errors with the next step."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from slowrank.client import ApiError, Client

UrlOption = Annotated[
    str | None, typer.Option("--url", help="API address [env: SLOWRANK_URL, or what `slowrank up` wrote].")
]
KeyOption = Annotated[
    str | None,
    typer.Option("--key", help="API key [env: SLOWRANK_KEY, SLOWRANK_KEY_FILE].", show_default=False),
]

# Control characters that slowrank's messages use; all others are replaced.
LAYOUT = "\n\t"

# By the collection in a path of the API: the command that lists it.
_LISTS = {
    "findings": "slowrank findings list",
    "webhooks": "slowrank webhook list",
    "deliveries": "slowrank webhook deliveries",
    "keys": "slowrank key list",
}


@dataclass(frozen=True, slots=True)
class Access:
    """Address and key of the API."""

    url: str
    key: str


def config_dir() -> Path:
    """Return the folder ``slowrank up`` writes ``url`` and ``key`` to."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "slowrank"


def access(url: str | None, key: str | None) -> Access:
    """Return address and key: flags > environment > files. Exits when there is no key."""
    found_url = (
        url or os.environ.get("SLOWRANK_URL") or read_text(config_dir() / "url") or "http://127.0.0.1:8080"
    )
    found_key = known_key(key)
    if not found_key:
        fail(
            "no API key: give --key or set SLOWRANK_KEY or SLOWRANK_KEY_FILE.\n"
            "Create one with `slowrank key create --name me --scope findings:read --dsn postgresql://…`, "
            "or start `slowrank up`, which writes one."
        )
    return Access(found_url.rstrip("/"), found_key)


def known_key(key: str | None) -> str:
    """Return the key: flag > environment > file of ``slowrank up``; empty where there is none.

    Exits where SLOWRANK_KEY_FILE names a file without a key.
    """
    found = key or os.environ.get("SLOWRANK_KEY")
    if not found and (key_file := os.environ.get("SLOWRANK_KEY_FILE")):
        found = _key_in(Path(key_file))
    return found or read_text(config_dir() / "key")


def _key_in(path: Path) -> str:
    """Return the key in the file of SLOWRANK_KEY_FILE. Exits where there is none: no other key is meant."""
    try:
        found = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        fail(f"SLOWRANK_KEY_FILE: cannot read {path}: {reason}. Write a key into it, or unset the variable.")
    if not found:
        fail(f"SLOWRANK_KEY_FILE: {path} is empty. Write a key into it, or unset the variable.")
    return found


def fail(message: str, code: int = 2) -> NoReturn:
    """Print ``message`` on stderr and exit with ``code``."""
    typer.secho(f"error: {printable(message, keep=LAYOUT)}", err=True, fg=typer.colors.RED)
    raise typer.Exit(code)


@contextmanager
def client(url: str | None, key: str | None) -> "Iterator[Client]":
    """Open a client; every failure ends in one message and exit code 2."""
    import httpx

    from slowrank.client import ApiError, Client, NotSlowrank
    from slowrank.client.errors import NoId

    reach = access(url, key)
    try:
        with Client(reach.url, reach.key) as api:
            yield api
    except ApiError as error:
        fail(_explained(error))
    except NotSlowrank:
        fail("the server at this address is not slowrank's API. Check --url / SLOWRANK_URL.")
    except NoId as error:
        fail(f"{error}. A list command shows the ids, such as `slowrank findings list`.")
    except httpx.ConnectError:
        fail(
            f"no API answers at {reach.url}. Is it running? Start `slowrank up` or `slowrank api run`, "
            "or give --url."
        )
    except httpx.TimeoutException:
        fail(f"{reach.url} did not answer in time. Run `slowrank healthcheck api`.")
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeEncodeError) as error:
        fail(f"request to {reach.url} failed: {error}")


def printable(text: object, keep: str = "") -> str:
    """Return ``text`` without control, direction and other invisible characters: safe on a terminal."""
    return "".join(c if c.isprintable() or c in keep else "\ufffd" for c in str(text))


def _explained(error: "ApiError") -> str:
    lists = _LISTS.get(error.collection, "slowrank --help")
    hint = {
        401: "Check --key / SLOWRANK_KEY; `slowrank key list` shows the valid keys.",
        403: "Create another key with `slowrank key create --scope …`."
        if "lacks the scope" in error.detail
        else "",
        404: f"List what exists first: `{lists}`.",
        412: "It was changed meanwhile; run the command again.",
        429: "Wait a moment and run the command again.",
        503: "Run `slowrank healthcheck api`.",
    }.get(error.status, "")
    tail = f" (request {error.request_id})" if error.request_id and error.status >= 500 else ""
    return f"{error}{tail}" + (f"\n{hint}" if hint else "")


def read_text(path: Path) -> str:
    """Return the stripped text of a file, or nothing when there is none."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
