"""Processes that answer on loopback: the API, one with a trivial endpoint; keys to ask with."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from psycopg_pool import ConnectionPool

from benchmarks.loopback import free_port
from store.access import keys

START_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Server:
    """A process that answers at ``url``."""

    url: str
    port: int
    pid: int

    def memory(self) -> int:
        """Return its resident memory in bytes (Linux)."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * resource.getpagesize()


@contextmanager
def api(dsn: str, **settings: object) -> Iterator[Server]:
    """Run ``slowrank api run`` on a database; ``settings`` as ``api_max_connections=2000``."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLOWRANK_")}
    named = {f"SLOWRANK_{name.upper()}": str(value) for name, value in settings.items()}
    environment = kept | named | {"SLOWRANK_DATABASE_URL": dsn}
    port = free_port()
    program = [str(Path(sys.executable).with_name("slowrank")), "api", "run", "--port", str(port)]
    with _running(program, environment, port, "/healthz") as server:
        yield server


@contextmanager
def trivial() -> Iterator[Server]:
    """Run a FastAPI application with one endpoint that does nothing, ``/trivial``."""
    port = free_port()
    program = [sys.executable, "-m", "benchmarks.api.trivial", str(port)]
    with _running(program, dict(os.environ), port, "/trivial") as server:
        yield server


@contextmanager
def _running(program: Sequence[str], environment: dict[str, str], port: int, path: str) -> Iterator[Server]:
    process = subprocess.Popen(
        program, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    server = Server(f"http://127.0.0.1:{port}", port, process.pid)
    try:
        _wait(process, server.url + path)
        yield server
    finally:
        process.terminate()
        process.communicate()


def _wait(process: subprocess.Popen[bytes], url: str) -> None:
    until = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < until:
        try:
            if httpx.get(url).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.1)
    process.kill()
    _, errors = process.communicate()
    raise RuntimeError(f"{url} does not answer: {errors.decode()[-1000:]}")


def new_keys(pool: ConnectionPool[Any], count: int) -> list[str]:
    """Store keys that may read everything; return their tokens. Several, as each has a rate limit."""
    tokens = []
    for _ in range(count):
        key_id, token, digest = keys.generate()
        key = keys.ApiKey(
            id=key_id,
            name="benchmark",
            sha256=digest,
            scopes=("findings:read", "telemetry:read"),
            created_by="benchmark",
            created_at=datetime.now(UTC),
        )
        with pool.connection() as conn:
            keys.create(conn, key)
        tokens.append(token)
    return tokens
