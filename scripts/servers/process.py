"""Server processes: each in its own session, written to disk at once, stopped by pid and by nothing else."""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import random
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STATE = ROOT / ".services"
CACHE = STATE / "cache"
RUNS = STATE / "runs"

# Below the kernel's ephemeral range (32768 up): a client that keeps dialling a broker which is down
# could otherwise be handed that very port as its own source port and connect to itself.
PORTS = range(20000, 32000)

# Descriptors of the locked files of the ports that this process was given; its end unlocks them.
_reserved: dict[int, int] = {}


class ServiceError(RuntimeError):
    """A server that cannot be installed or started. The message gives the reason and a way out."""


def free_ports(count: int) -> list[int]:
    """Distinct loopback TCP ports on which nothing listens, kept from other processes until this one ends."""
    found: list[int] = []
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        if not _reserve(port):
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise ServiceError(f"no {count} free ports between {PORTS.start} and {PORTS.stop} on 127.0.0.1")


def _reserve(port: int) -> bool:
    """Hold a port's lock until this process ends; False where another process of this checkout holds it.

    A server may take long to bind its port: other tests must not be given the same one meanwhile.
    """
    if port in _reserved:
        return False
    folder = STATE / "ports"
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / str(port), os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    _reserved[port] = descriptor
    return True


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold an advisory lock among all processes that use this checkout's services."""
    STATE.mkdir(parents=True, exist_ok=True)
    with (STATE / f"{name}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def wait_until(ready: Callable[[], bool], *, seconds: float, what: str) -> None:
    """Poll `ready` until it is true; ServiceError when it is not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise ServiceError(f"{what} took longer than {seconds:.0f} s")
        time.sleep(0.05)


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state letter on; empty when there is no such process."""
    try:
        # From the last parenthesis: the command's name before it may hold spaces and parentheses.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


@dataclass(frozen=True, slots=True)
class Process:
    """A process we started: its pid, and its start in ticks since boot, which tells a reused pid apart."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Process:
        # Field 22 of proc(5), counted here from the state letter, which is the third.
        return cls(pid, int((_stat(pid) or ["0"] * 20)[19]))

    @classmethod
    def spawn(cls, argv: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None) -> Process:
        """Start argv in a session of its own, its output appended to `log`."""
        executable = shutil.which(argv[0])
        if executable is None:
            raise ServiceError(f"{argv[0]}: not found; install it and run this again")
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), append, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        environment = os.environ if env is None else env
        return cls.of(os.posix_spawn(executable, list(argv), environment, file_actions=actions, setsid=True))

    def alive(self) -> bool:
        with suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)  # reaps it when it is our own child
        fields = _stat(self.pid)
        return bool(fields) and fields[0] != "Z" and int(fields[19]) == self.started

    def children(self) -> list[Process]:
        pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        return [Process.of(pid) for pid in pids if _stat(pid)[1:2] == [str(self.pid)]]

    def send(self, number: signal.Signals) -> None:
        if self.alive():
            os.kill(self.pid, number)

    def stop(self, number: signal.Signals = signal.SIGTERM, *, seconds: float = 20) -> None:
        """Send signal `number`; after `seconds` without effect send SIGKILL."""
        # A stopped process handles no signal but SIGKILL until it continues.
        self.send(signal.SIGCONT)
        self.send(number)
        try:
            wait_until(lambda: not self.alive(), seconds=seconds, what=f"stopping pid {self.pid}")
        except ServiceError:
            self.send(signal.SIGKILL)
            wait_until(lambda: not self.alive(), seconds=5, what=f"killing pid {self.pid}")


@dataclass(slots=True)
class Run:
    """The processes and directories of one server, recorded on disk so that `down` finds them.

    A run with an owner ends with the owner: at its exit, or by `sweep` when the owner was killed. For a
    server in a container, `probe` is a command that prints something while it runs, and `finish` the one
    that ends it.
    """

    name: str
    stop_signal: signal.Signals
    owner: Process | None = None
    processes: dict[str, Process] = field(default_factory=dict)
    paths: list[Path] = field(default_factory=list)
    exports: dict[str, str] = field(default_factory=dict)
    probe: list[str] = field(default_factory=list)
    finish: list[str] = field(default_factory=list)

    @classmethod
    def begin(cls, kind: str, *, stop_signal: signal.Signals, shared: bool) -> Run:
        """A run named `kind` that outlives this process (shared), or one of our own under a random name."""
        if shared:
            return cls(kind, stop_signal)
        run = cls(f"{kind}-{secrets.token_hex(4)}", stop_signal, owner=Process.of(os.getpid()))
        atexit.register(run.end)
        return run

    def save(self) -> None:
        RUNS.mkdir(parents=True, exist_ok=True)
        record = {
            "stop_signal": int(self.stop_signal),
            "owner": self.owner and [self.owner.pid, self.owner.started],
            "processes": {name: [item.pid, item.started] for name, item in self.processes.items()},
            "paths": [str(path) for path in self.paths],
            "exports": self.exports,
            "probe": self.probe,
            "finish": self.finish,
        }
        (RUNS / f"{self.name}.json").write_text(json.dumps(record, indent=1))

    @classmethod
    def load(cls, name: str) -> Run | None:
        try:
            record = json.loads((RUNS / f"{name}.json").read_text())
        except FileNotFoundError:
            return None
        return cls(
            name,
            signal.Signals(record["stop_signal"]),
            owner=Process(*record["owner"]) if record["owner"] else None,
            processes={key: Process(*value) for key, value in record["processes"].items()},
            paths=[Path(path) for path in record["paths"]],
            exports=record["exports"],
            probe=record.get("probe", []),
            finish=record.get("finish", []),
        )

    def alive(self) -> bool:
        if self.probe:
            return bool(subprocess.run(self.probe, capture_output=True, check=False).stdout.strip())
        return bool(self.processes) and all(process.alive() for process in self.processes.values())

    def end(self) -> None:
        """Stop every process and delete every directory. Ending an ended run does nothing."""
        if self.owner is not None and self.owner.pid != os.getpid() and self.owner.alive():
            return  # a forked child of the owner runs the same exit handlers
        for process in self.processes.values():
            process.send(self.stop_signal)
        for process in self.processes.values():
            process.stop(self.stop_signal)
        if self.finish and subprocess.run(self.finish, check=False).returncode != 0:
            raise ServiceError(f"{self.name} could not be stopped: {shlex.join(self.finish)}")
        for path in self.paths:
            shutil.rmtree(path, ignore_errors=True)
        (RUNS / f"{self.name}.json").unlink(missing_ok=True)
        atexit.unregister(self.end)


def runs() -> list[Run]:
    """Every run recorded on disk, shared and private."""
    loaded = [Run.load(path.stem) for path in sorted(RUNS.glob("*.json"))]
    return [run for run in loaded if run is not None]


def sweep() -> None:
    """End the private servers whose owner is gone (a test run that was killed)."""
    for run in runs():
        if run.owner is not None and not run.owner.alive():
            run.end()
