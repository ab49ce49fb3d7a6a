"""HTTP client of the commands: address and key of the API, and errors with the next step."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

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

_NOT_OUR_API = "the server at this address is not slowrank's API. Check --url / SLOWRANK_URL."


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
    """Return the key: flag > environment > file of ``slowrank up``; empty where there is none."""
    key_file = os.environ.get("SLOWRANK_KEY_FILE")
    found = key or os.environ.get("SLOWRANK_KEY") or (read_text(Path(key_file)) if key_file else "")
    return found or read_text(config_dir() / "key")


def fail(message: str, code: int = 2) -> NoReturn:
    """Print ``message`` on stderr and exit with ``code``."""
    typer.secho(f"error: {printable(message, keep=LAYOUT)}", err=True, fg=typer.colors.RED)
    raise typer.Exit(code)


@contextmanager
def client(url: str | None, key: str | None) -> "Iterator[Client]":
    """Open a client; every failure ends in one message and exit code 2."""
    import httpx

    reach = access(url, key)
    headers = {"authorization": f"Bearer {reach.key}", "accept": "application/json"}
    try:
        with httpx.Client(base_url=reach.url, headers=headers, timeout=30, trust_env=False) as http:
            yield Client(http)
    except httpx.ConnectError:
        fail(
            f"no API answers at {reach.url}. Is it running? Start `slowrank up` or `slowrank api run`, "
            "or give --url."
        )
    except httpx.TimeoutException:
        fail(f"{reach.url} did not answer within 30 s. Run `slowrank healthcheck api`.")
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeEncodeError) as error:
        fail(f"request to {reach.url} failed: {error}")


class Client:
    """JSON client; an error answer (problem+json) ends the command with its detail."""

    def __init__(self, http: Any) -> None:
        self._http = http

    def get(self, path: str, **params: Any) -> Any:
        """Send GET; parameters that are None are left out."""
        return self.call("GET", path, params={k: v for k, v in params.items() if v is not None})

    def call(self, method: str, path: str, **options: Any) -> Any:
        """Send one request under ``/api/v1`` and return the decoded answer (None for 204)."""
        return self.exchange(method, path, **options)[0]

    def exchange(self, method: str, path: str, **options: Any) -> tuple[Any, dict[str, str]]:
        """Like ``call``, with the answer's headers."""
        answer = self._http.request(method, f"/api/v1{path}", **options)
        if not answer.is_success:
            fail(_explained(answer))
        headers = {name.lower(): value for name, value in answer.headers.items()}
        try:
            return (answer.json() if answer.content else None), headers
        except ValueError:
            fail(_NOT_OUR_API)

    def pages(self, path: str, **params: Any) -> Iterator[Any]:
        """Yield the items of every page of a list."""
        cursor: str | None = None
        while True:
            page = self.get(path, cursor=cursor, **params)
            if not isinstance(page, dict) or not {"items", "next_cursor"} <= page.keys():
                fail(_NOT_OUR_API)
            yield from page["items"]
            cursor = page["next_cursor"]
            if not cursor:
                return


def printable(text: object, keep: str = "") -> str:
    """Return ``text`` without control, direction and other invisible characters: safe on a terminal."""
    return "".join(c if c.isprintable() or c in keep else "\ufffd" for c in str(text))


def _explained(answer: Any) -> str:
    try:
        problem = answer.json()
        detail = problem.get("detail") or problem.get("title")
        number = problem.get("request_id")
    except (ValueError, AttributeError):
        detail, number = answer.text[:200], None
    lacks = "lacks the scope" in str(detail)
    lists = _LISTS.get(answer.request.url.path.split("/")[3], "slowrank --help")
    hint = {
        401: "Check --key / SLOWRANK_KEY; `slowrank key list` shows the valid keys.",
        403: "Create another key with `slowrank key create --scope …`." if lacks else "",
        404: f"List what exists first: `{lists}`.",
        412: "It was changed meanwhile; run the command again.",
        429: "Wait a moment and run the command again.",
        503: "Run `slowrank healthcheck api`.",
    }.get(answer.status_code, "")
    tail = f" (request {number})" if number and answer.status_code >= 500 else ""
    return f"HTTP {answer.status_code}: {detail}{tail}" + (f"\n{hint}" if hint else "")


def read_text(path: Path) -> str:
    """Return the stripped text of a file, or nothing when there is none."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
