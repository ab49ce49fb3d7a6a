"""The server side of the rig: one Kafka broker on the management network, TimescaleDB, the stream workers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from servers import kafka, timescale
from servers.debian import ensure_commands
from servers.process import Process

from benchmarks.rig.network import HUB_ADDRESS

ROOT = Path(__file__).resolve().parents[2]

# The command ``slowrank`` of this checkout.
SLOWRANK = [sys.executable, "-c", "from cli import main; main()"]

_READY_SECONDS = 240.0
# Findings of so short a memory suffice, and a worker that starts has little to read again.
_SETTINGS = {"SLOWRANK_STREAMS_REBUILD_MINUTES": "1", "SLOWRANK_TOPIC_PARTITIONS": "2"}


def prepare() -> None:
    """Download Kafka, TimescaleDB and libfaketime, once: in the hub's namespace there is no way out."""
    kafka.install()
    timescale.install()
    ensure_commands({"faketime": "faketime"})


@dataclass(frozen=True, slots=True)
class Installation:
    """Addresses and settings of the servers; ``home`` holds logs and spools."""

    bootstrap: str
    dsn: str
    home: Path

    @property
    def environment(self) -> dict[str, str]:
        """Environment of every process of the rig."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("SLOWRANK_")}
        return (
            inherited
            | _SETTINGS
            | {
                "SLOWRANK_KAFKA_BOOTSTRAP": self.bootstrap,
                "SLOWRANK_DATABASE_URL": self.dsn,
                "SLOWRANK_STREAMS_RUNTIME_DIR": str(self.home / "run"),
                "PYTHONPATH": str(ROOT),
                # One thread a rank: others would compete for the cores of this machine.
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
            }
        )

    def spawn(self, argv: list[str], log: str, extra: Mapping[str, str] | None = None) -> Process:
        """Start a process whose output goes to the file ``log`` of ``home``."""
        return Process.spawn(argv, log=self.home / log, env=self.environment | dict(extra or {}))

    def findings(self, cluster: str) -> list[dict[str, Any]]:
        """Return the findings stored for a cluster, as ``finding.v1``, with their status."""
        query = "SELECT doc, status FROM findings WHERE cluster = %s AND NOT shadow ORDER BY detected_at, id"
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            return [doc | {"status": status} for doc, status in connection.execute(query, [cluster])]


@contextmanager
def installed(home: Path) -> Iterator[Installation]:
    """Start the servers and both workers; wait until these read."""
    (home / "run").mkdir(parents=True, exist_ok=True)
    with kafka.KafkaCluster(host=HUB_ADDRESS) as brokers, timescale.Timescale() as database:
        made = Installation(brokers.bootstrap, database.create_database("rig"), home)
        for command in (["topics", "create"], ["migrate"]):
            subprocess.run([*SLOWRANK, *command], env=made.environment, check=True, capture_output=True)
        workers = made.spawn([*SLOWRANK, "streams", "run"], "streams.log")
        try:
            _wait_ready(made)
            yield made
        finally:
            workers.stop()


def _wait_ready(made: Installation) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while not all(list((made.home / "run").glob(f"streams-{role}-*.json")) for role in ("detect", "sink")):
        if time.monotonic() > deadline:
            log = (made.home / "streams.log").read_text()[-2000:]
            raise TimeoutError(f"the stream workers did not start in {_READY_SECONDS:.0f} s:\n{log}")
        time.sleep(0.2)
