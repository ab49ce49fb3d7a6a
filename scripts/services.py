"""Start, stop and describe the Kafka and TimescaleDB that tests and contributors use. Needs only Python.

Where a container engine answers, docker compose serves them, otherwise they run without one, as they do with
SLOWRANK_SERVICES=local and with three brokers.

python scripts/services.py up [--brokers 3]     start them, or reuse those which run
eval "$(python scripts/services.py env)"        export SLOWRANK_TEST_KAFKA and SLOWRANK_TEST_DSN
python scripts/services.py run -- COMMAND       run COMMAND with them, then stop what was started for it
python scripts/services.py status | down
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import ExitStack

from servers.compose import ComposeService, wanted
from servers.kafka import KafkaCluster
from servers.process import Run, ServiceError, locked, runs, sweep
from servers.timescale import Timescale

SHARED = {"timescale": "SLOWRANK_TEST_DSN", "kafka": "SLOWRANK_TEST_KAFKA"}


def exports() -> dict[str, str]:
    """Environment variables of the shared servers that run now."""
    alive = [run for name in SHARED if (run := Run.load(name)) is not None and run.alive()]
    return {key: value for run in alive for key, value in run.exports.items()}


def up(brokers: int, names: Iterable[str] = SHARED) -> list[str]:
    """Start the servers that do not run yet; return their names. After a failure none of them is left."""
    sweep()
    started = []
    with ExitStack() as undo:
        for name in names:
            run = Run.load(name)
            enough = run is not None and (name != "kafka" or brokers == 1 or len(run.processes) >= brokers)
            if run is not None and run.alive() and enough:
                continue
            if run is not None:
                run.end()
            server = _server(name, brokers)
            undo.callback(server.close)
            server.start()
            started.append(name)
        undo.pop_all()
    return started


def _server(name: str, brokers: int) -> KafkaCluster | Timescale | ComposeService:
    if (name != "kafka" or brokers == 1) and wanted():
        return ComposeService(name)
    return KafkaCluster(brokers=brokers, shared=True) if name == "kafka" else Timescale(shared=True)


def down(names: Iterable[str] = SHARED) -> None:
    """Stop shared servers, and the private ones whose owner has ended."""
    sweep()
    for run in runs():
        if run.name in names:
            run.end()


def show() -> None:
    for run in runs():
        state = "running" if run.alive() else "stopped"
        pids = " ".join(str(process.pid) for process in run.processes.values())
        print(f"{run.name:20} {state}  {f'pid {pids}' if pids else 'docker compose'}")
    for key, value in exports().items():
        print(f"{key}={value}")


def run(command: list[str], brokers: int) -> int:
    """Run a command with the servers' addresses in its environment; return its exit status.

    No server is started where its variable is already set (docker compose, a test cluster).
    """
    # The lock is not held while the command runs: others may use the servers meanwhile.
    with locked("services"):
        started = up(brokers, [name for name, variable in SHARED.items() if variable not in os.environ])
    # By default SIGTERM ends Python without running `finally`. 143 is 128 + SIGTERM, as a shell reports it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return subprocess.run(command, env={**exports(), **os.environ}, check=False).returncode
    finally:
        with locked("services"):
            down(started)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["up", "run", "down", "status", "env"])
    parser.add_argument("argument", nargs="*", help="the command to run")
    parser.add_argument("--brokers", type=int, choices=[1, 3], default=1, help="Kafka brokers (up, run)")
    options = parser.parse_args(arguments)
    try:
        if options.command == "run":
            return run(options.argument, options.brokers)
        with locked("services"):
            if options.command == "up":
                print("started" if up(options.brokers) else "already running")
            elif options.command == "down":
                down()
        if options.command == "env":
            print("\n".join(f"export {key}={value}" for key, value in exports().items()))
        elif options.command != "down":
            show()
    except (ServiceError, subprocess.CalledProcessError) as error:
        print(f"services: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
