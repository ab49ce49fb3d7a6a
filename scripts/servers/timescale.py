"""PostgreSQL with TimescaleDB from Debian's packages in a private root: no engine, nothing installed."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

from servers.debian import unpack
from servers.process import CACHE, STATE, Process, Run, ServiceError, free_ports, locked, wait_until

# The oldest Debian that packages it.
SUITE, VERSION = "trixie", 17
PACKAGES = (f"postgresql-{VERSION}-timescaledb", "dash", "coreutils", "libc-bin")
BIN = f"/usr/lib/postgresql/{VERSION}/bin"
UID = 5432
ENV = {"LC_ALL": "C.UTF-8", "PATH": f"{BIN}:/usr/bin:/bin:/usr/sbin:/sbin", "TZ": "UTC"}
SETTINGS = {
    "shared_preload_libraries": "timescaledb",
    "timescaledb.telemetry_level": "off",
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "dynamic_shared_memory_type": "mmap",  # a private root has no /dev/shm of its own
    "jit": "off",  # libLLVM is left out of it
    "max_connections": "200",
    "max_worker_processes": "64",  # TimescaleDB starts one for every database that has the extension
    "timescaledb.max_background_workers": "48",
}
# The outer namespace may mount /dev; the inner one maps to a non-zero uid, as postgres refuses to be uid 0.
MAPPED = ("unshare", "--user", "--map-user=5432", "--map-group=5432")
ENTER = f'mount --rbind /dev "$0/dev" && exec {" ".join(MAPPED)} --root="$0" --wd=/ "$@"'


class Timescale:
    """One PostgreSQL server with TimescaleDB on a free loopback port; superuser postgres, no password.

    stop() keeps the data for the next start(); close() deletes it. A shared server outlives this process.
    """

    def __init__(self, *, shared: bool = False) -> None:
        # SIGINT is PostgreSQL's fast shutdown; at SIGTERM it would wait for its clients to leave.
        self._run = Run.begin("timescale", stop_signal=signal.SIGINT, shared=shared)
        self._data = _tree() / "data" / self._run.name
        self._log = STATE / self._run.name / "postgres.log"
        self._run.paths = [self._data, self._log.parent]
        (self.port,) = free_ports(1)

    @property
    def dsn(self) -> str:
        return self._dsn("postgres")

    def _dsn(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def __enter__(self) -> Timescale:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the server (on the data it had before) and wait until it accepts connections."""
        install()
        if not self._data.exists():
            shutil.copytree(_template(), self._data, symlinks=True)
            _own(self._data)
        self._run.exports = {"SLOWRANK_TEST_DSN": self.dsn}
        argv = _inside(f"{BIN}/postgres", "-D", f"/data/{self._run.name}", "-c", f"port={self.port}")
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._log.unlink(missing_ok=True)
        self._run.processes["postgres"] = Process.spawn(argv, log=self._log, env=ENV)
        self._run.save()
        wait_until(self._ready, seconds=30, what=f"starting PostgreSQL (log: {self._log})")

    def stop(self) -> None:
        """Fast shutdown: open connections are ended; the data stays."""
        self.resume()
        self.process.stop(signal.SIGINT)

    def close(self) -> None:
        """Stop the server and delete its data."""
        if self._run.processes:
            self.resume()
        self._run.end()

    def kill(self) -> None:
        """End the server as a power cut would: SIGKILL to all of its processes."""
        processes = [self.process, *self.process.children()]
        for process in processes:
            process.send(signal.SIGKILL)
        wait_until(lambda: not any(map(Process.alive, processes)), seconds=10, what="the end of PostgreSQL")

    def pause(self) -> None:
        """Freeze the server: connections hang instead of failing."""
        # First, as it would start further backends while the others are being frozen.
        self.process.send(signal.SIGSTOP)
        for backend in self.process.children():
            backend.send(signal.SIGSTOP)

    def resume(self) -> None:
        for backend in self.process.children():
            backend.send(signal.SIGCONT)
        self.process.send(signal.SIGCONT)

    def create_database(self, name: str) -> str:
        """Create an empty database (without the extension: migrations create it) and return its DSN."""
        self._sql(f'CREATE DATABASE "{_identifier(name)}"')
        return self._dsn(name)

    @property
    def process(self) -> Process:
        """The postmaster, once started."""
        return self._run.processes["postgres"]

    def _ready(self) -> bool:
        if not self.process.alive():
            raise ServiceError(f"PostgreSQL ended while starting:\n{self._log.read_text()[-2000:]}")
        probe = _inside(f"{BIN}/pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port))
        return subprocess.run(probe, env=ENV, check=False).returncode == 0

    @property
    def psql(self) -> list[str]:
        """Command line of this server's own psql; options and SQL go after it, or on its standard input."""
        return _inside(f"{BIN}/psql", "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", "-qX")

    def _sql(self, statement: str) -> None:
        client = [*self.psql, "-v", "ON_ERROR_STOP=1", "-c", statement]
        result = subprocess.run(client, env=ENV, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise ServiceError(f"{statement}: {result.stderr.strip()}")


def _identifier(name: str) -> str:
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", name):
        raise ValueError(f"database name {name!r}: use lower-case letters, digits and underscores")
    return name


def _home() -> Path:
    # Another recipe is another folder: nothing old is ever mixed in.
    recipe = repr((SUITE, PACKAGES, SETTINGS))
    return CACHE / f"timescale-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def _tree() -> Path:
    return _home() / "root"


def _template() -> Path:
    """A fresh data directory, copied for every server. Its owner differs with the way into the root."""
    return _tree() / "data" / ("template-namespaces" if _namespaces() else "template-chroot")


@functools.cache
def _namespaces() -> bool:
    """Whether this user may create user and mount namespaces."""
    probe = ["unshare", "-r", "--mount", *MAPPED, "true"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def _inside(*argv: str) -> list[str]:
    """argv as a command that runs in the private root, as a user PostgreSQL accepts."""
    if _namespaces():
        return ["unshare", "-r", "--mount", "sh", "-c", ENTER, str(_tree()), *argv]
    if os.geteuid() == 0:
        return ["chroot", f"--userspec={UID}:{UID}", str(_tree()), *argv]
    raise ServiceError(
        "TimescaleDB needs unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone=1, "
        "kernel.apparmor_restrict_unprivileged_userns=0), or root, or a container engine"
    )


def _own(directory: Path) -> None:
    if _namespaces():
        return
    for path in (directory, *directory.rglob("*")):
        os.chown(path, UID, UID, follow_symlinks=False)


def install() -> None:
    """Unpack the packages and make the template data directory, once; later calls return at once."""
    with locked("timescale"):
        if not (_home() / "unpacked").exists():
            shutil.rmtree(_home(), ignore_errors=True)
            _tree().mkdir(parents=True)
            unpack(PACKAGES, suite=SUITE, into=_tree(), work=_home() / "apt")
            _furnish()
            (_home() / "unpacked").touch()
            shutil.rmtree(_home() / "apt")
        if not (_template() / "PG_VERSION").exists():
            _initdb()


def _furnish() -> None:
    """What PostgreSQL expects around it: a passwd entry, device files, a place for data."""
    for folder in ("etc", "dev", "data", "tmp"):
        (_tree() / folder).mkdir(exist_ok=True)
    (_tree() / "etc/passwd").write_text(f"postgres:x:{UID}:{UID}::/data:/bin/sh\n")
    (_tree() / "etc/group").write_text(f"postgres:x:{UID}:\n")


def _initdb() -> None:
    shutil.rmtree(_template(), ignore_errors=True)
    _template().mkdir(mode=0o700)
    if not _namespaces():
        for name, minor in (("null", 3), ("zero", 5), ("urandom", 9)):
            if not (_tree() / "dev" / name).exists():
                os.mknod(_tree() / "dev" / name, 0o20666, os.makedev(1, minor))
                (_tree() / "dev" / name).chmod(0o666)
    _own(_template())
    options = [flag for name, value in SETTINGS.items() for flag in ("-c", f"{name}={value}")]
    base = [
        "-D",
        f"/data/{_template().name}",
        "-A",
        "trust",
        "-U",
        "postgres",
        "--locale=C.UTF-8",
        "-E",
        "UTF8",
    ]
    made = subprocess.run(
        _inside(f"{BIN}/initdb", *base, *options), env=ENV, capture_output=True, text=True, check=False
    )
    if made.returncode != 0:
        raise ServiceError(f"initdb failed:\n{made.stdout[-1000:]}{made.stderr[-2000:]}")
