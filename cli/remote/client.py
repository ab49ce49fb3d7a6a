"""The commands' way to the API: its address and key, and errors with the next step."""

import os
import re
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
    "silences": "slowrank silence list",
    "inhibitions": "slowrank inhibition list",
}


# A place in a request, in errors of the API, and the option or argument that fills a field of it.
_POINTER = re.compile(r"#/(?:body|query|path|header)/([^\s:]+)")
_OPTIONS = {
    "kind": "--kind",
    "kinds": "--kind",
    "events": "--event",
    "min_severity": "--min-severity",
    "matchers": "matcher",
    "wait_seconds": "--wait",
    "interval_seconds": "--interval",
    "repeat_seconds": "--repeat",
    "template": "--template-file",
    "secret": "--secret-file",
    "url": "URL",
    "from": "--since",
    "node": "--node",
    "job_id": "--job",
    "comment": "--comment",
    "note": "--note",
    "endsAt": "--for",
    "startsAt": "--at",
    "finding_id": "the finding's id",
}


@dataclass(frozen=True, slots=True)
class Access:
    """Address and key of the API; ``source`` names where the key is from, for people."""

    url: str
    key: str
    source: str


def config_dir() -> Path:
    """Return the folder ``slowrank up`` writes ``url`` and ``key`` to."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "slowrank"


def access(url: str | None, key: str | None) -> Access:
    """Return address and key: flags > environment > files. Exits when there is no key."""
    found_url = (
        url or os.environ.get("SLOWRANK_URL") or read_text(config_dir() / "url") or "http://127.0.0.1:8080"
    )
    if not found_url.startswith(("http://", "https://")):
        fail(
            f"{found_url!r} is no address of an API: it begins with http:// or https://, as "
            "http://127.0.0.1:8080. Check --url / SLOWRANK_URL."
        )
    found_key, source = _key_and_source(key)
    if not found_key:
        fail(
            "no API key: give --key or set SLOWRANK_KEY or SLOWRANK_KEY_FILE.\n"
            "Create one with `slowrank key create --name me --scope findings:read --dsn postgresql://…`, "
            "or start `slowrank up`, which writes one. `slowrank demo` prints how to use its own."
        )
    return Access(found_url.rstrip("/"), found_key, source)


def known_key(key: str | None) -> str:
    """Return the key: flag > environment > file of ``slowrank up``; empty where there is none.

    Exits where SLOWRANK_KEY_FILE names a file without a key.
    """
    return _key_and_source(key)[0]


def _key_and_source(key: str | None) -> tuple[str, str]:
    if key:
        return key, "--key"
    if found := os.environ.get("SLOWRANK_KEY"):
        return found, "SLOWRANK_KEY"
    if key_file := os.environ.get("SLOWRANK_KEY_FILE"):
        return _key_in(Path(key_file)), f"SLOWRANK_KEY_FILE, {key_file}"
    written = config_dir() / "key"
    return read_text(written), str(written)


def _key_in(path: Path) -> str:
    """Return the key in the file of SLOWRANK_KEY_FILE. Exits where there is none: no other key is meant."""
    try:
        found = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        fail(
            f"SLOWRANK_KEY_FILE: cannot read {path}: {reason}. Write a key into it, or unset the variable, "
            "and SLOWRANK_URL too where both are of a `slowrank demo` that has ended."
        )
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
        fail(_explained(error, reach))
    except NotSlowrank:
        fail("the server at this address is not slowrank's API. Check --url / SLOWRANK_URL.")
    except NoId as error:
        fail(f"{error}. A list command shows the ids, such as `slowrank findings list`.")
    except httpx.ConnectError as error:
        if "SSL" in str(error) or "TLS" in str(error):
            fail(f"{reach.url}: {error}. Is its certificate right, or does it speak http:// only?")
        file = config_dir() / "url"
        written = f", the address that `slowrank up` wrote to {file}" if reach.url == read_text(file) else ""
        fail(
            f"no API answers at {reach.url}{written}. Is it running? Start `slowrank up` or "
            "`slowrank api run`, or give --url."
        )
    except httpx.TimeoutException:
        fail(f"{reach.url} did not answer in time. Run `slowrank healthcheck api`.")
    except httpx.TransportError as error:
        fail(
            f"{reach.url} broke the connection off: {error}. Is it slowrank's API? Start `slowrank up` or "
            "`slowrank api run`, or give --url."
        )
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeEncodeError) as error:
        fail(f"request to {reach.url} failed: {error}")


def printable(text: object, keep: str = "") -> str:
    """Return ``text`` without control, direction and other invisible characters: safe on a terminal."""
    return "".join(c if c.isprintable() or c in keep else "\ufffd" for c in str(text))


def _explained(error: "ApiError", reach: Access) -> str:
    if error.status == 401:
        return (
            f"HTTP 401: {reach.url} does not accept the key from {reach.source}: it is of another "
            "installation, revoked or expired.\nWith the right one `slowrank key list` shows all. "
            "`slowrank up` writes its own; `slowrank key create --name me --scope all --dsn postgresql://…` "
            "makes one."
        )
    lists = _LISTS.get(error.collection)
    hint = {
        403: _of_refusal(error.detail),
        404: f"List what exists first: `{lists}`." if lists else "",
        409: "Put it into a file, and give that with --secret-file."
        if "needs as secret" in error.detail
        else "",
        412: "It was changed meanwhile; run the command again.",
        429: "Wait a moment and run the command again.",
        503: "Run `slowrank healthcheck api`.",
    }.get(error.status, "")
    tail = f" (request {error.request_id})" if error.request_id and error.status >= 500 else ""
    return f"{_POINTER.sub(_option, str(error))}{tail}" + (f"\n{hint}" if hint else "")


def _option(pointer: re.Match[str]) -> str:
    """Return what a place in a request, such as ``#/body/matchers/0/name``, is on the command line."""
    field, *inner = pointer[1].split("/")
    name = _OPTIONS.get(field, field)
    return " ".join([name, *(str(int(part) + 1) if part.isdigit() else part for part in inner)])


def _of_refusal(detail: str) -> str:
    if "lacks the scope" in detail:
        return "Create another key with `slowrank key create --scope …`."
    if "SLOWRANK_WEBHOOK_ALLOW_" in detail:
        return (
            "Set it where `slowrank up` or `slowrank demo`, or the API and the notifier, start, and restart "
            "them.\nA receiver on this machine needs three such settings: docs/webhooks.md, Where deliveries "
            "may go."
        )
    return ""


def read_text(path: Path) -> str:
    """Return the stripped text of a file, or nothing when there is none."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
