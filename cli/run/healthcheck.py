"""``slowrank healthcheck``: check the health of one process; for people, compose and probes."""

from enum import StrEnum
from typing import Annotated, Any

import typer

from cli.remote.client import config_dir, fail, printable, read_text


class Process(StrEnum):
    """Process to check."""

    api = "api"
    streams = "streams"
    notifier = "notifier"


def healthcheck(
    process: Annotated[Process, typer.Argument(help="api, streams or notifier.")],
    url: Annotated[str | None, typer.Option(help="API address; else SLOWRANK_URL or the settings.")] = None,
) -> None:
    """Exit 0 when the process is healthy, 1 when it is not, 2 when the API does not answer."""
    report = _readyz(_url(url))
    checks = [c for c in report["checks"] if process is Process.api or c["name"] == process.value]
    for check in checks:
        typer.echo(
            f"{'ok  ' if check['ok'] else 'FAIL'} {printable(check['name'])}: {printable(check['detail'])}"
        )
    # A degraded API is healthy itself: it reports missing other processes.
    healthy = report["status"] != "unready" if process is Process.api else any(c["ok"] for c in checks)
    if not healthy:
        fail(f"{process.value} is not healthy", code=1)


def _url(url: str | None) -> str:
    import os

    if url or os.environ.get("SLOWRANK_URL"):
        return (url or os.environ["SLOWRANK_URL"]).rstrip("/")
    from cli.admin.config import load_settings

    settings = load_settings()
    host = "127.0.0.1" if settings.api_host in ("0.0.0.0", "::") else settings.api_host
    return read_text(config_dir() / "url") or f"http://{host}:{settings.api_port}"


def _readyz(url: str) -> Any:
    import httpx

    try:
        with httpx.Client(timeout=10, trust_env=False) as http:
            return http.get(f"{url}/readyz").json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        fail(
            f"no answer from {url}/readyz: {error}\nIs the API running? `slowrank api run`, or `slowrank up`."
        )
