"""Kafka and TimescaleDB from docker-compose.yml, where there is a container engine.

Each is a compose project of its own, with random passwords and free ports, beside one of `docker compose up`.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess

from servers.process import ROOT, STATE, Run, ServiceError, free_ports
from servers.timescale import SETTINGS

FILE = ROOT / "docker-compose.yml"
# Chosen: `docker info` takes under a second; an engine whose daemon hangs never answers.
ASK_SECONDS = 5
# Chosen: includes the download of the image, some hundred MB.
START_SECONDS = 300
SERVICES = {"kafka": "kafka", "timescale": "db"}
PASSWORDS = ("db_admin_password", "db_streams_password", "db_api_password", "db_notifier_password")
# What many short-lived databases need beyond the defaults of the image.
ROOMY = ("max_connections", "max_worker_processes", "timescaledb.max_background_workers")


def wanted() -> bool:
    """Whether to use a container engine: one answers, and SLOWRANK_SERVICES is not `local`."""
    choice = os.environ.get("SLOWRANK_SERVICES", "")
    if choice not in ("", "local"):
        raise ServiceError(f"SLOWRANK_SERVICES={choice}: set it to local, or leave it out")
    return not choice and _answers("docker", "info") and _answers("docker", "compose", "version")


class ComposeService:
    """One service of docker-compose.yml on a free loopback port. It outlives this process until close()."""

    def __init__(self, name: str) -> None:
        self._service = SERVICES[name]
        self._directory = STATE / "compose" / name
        self._password = secrets.token_hex(16)
        (self._port,) = free_ports(1)
        self._run = Run.begin(name, stop_signal=signal.SIGTERM, shared=True)
        self._run.paths = [self._directory]
        self._run.probe = self._compose("ps", "--quiet", "--status", "running", self._service)
        self._run.finish = self._compose("down", "--volumes", "--timeout", "10")

    def start(self) -> None:
        """Start the container and wait until its health check passes."""
        self._directory.mkdir(parents=True, exist_ok=True)
        for name in PASSWORDS:
            path = self._directory / name
            path.touch(mode=0o600)
            path.write_text(self._password)
        (self._directory / "override.json").write_text(json.dumps(self._override(), indent=1))
        self._run.exports = self._exports()
        self._run.save()
        up = ("up", "--detach", "--wait", "--wait-timeout", str(START_SECONDS), self._service)
        # Its progress, the download of an image above all, goes to the terminal.
        if subprocess.run(self._compose(*up), check=False).returncode != 0:
            raise ServiceError(
                f"docker compose could not start {self._service}, see above; "
                "with SLOWRANK_SERVICES=local it is started without an engine"
            )

    def close(self) -> None:
        """Stop the container and delete its data."""
        self._run.end()

    def _exports(self) -> dict[str, str]:
        if self._service == "kafka":
            return {"SLOWRANK_TEST_KAFKA": f"127.0.0.1:{self._port}"}
        return {
            "SLOWRANK_TEST_DSN": f"postgresql://postgres:{self._password}@127.0.0.1:{self._port}/postgres"
        }

    def _override(self) -> dict[str, object]:
        options = [flag for name in ROOMY for flag in ("-c", f"{name}={SETTINGS[name]}")]
        return {
            "services": {"db": {"command": ["postgres", *options]}},
            "secrets": {name: {"file": str(self._directory / name)} for name in PASSWORDS},
        }

    def _compose(self, *arguments: str) -> list[str]:
        # In the environment, which takes precedence over an .env file of the checkout.
        variables = {
            "SLOWRANK_UID": str(os.getuid()),
            "SLOWRANK_GID": str(os.getgid()),
            "KAFKA_CLUSTER_ID": "slowrankServicesTest0A",
            "KAFKA_PORT": str(self._port),
            "DB_PORT": str(self._port),
        }
        files = ["-f", str(FILE), "-f", str(self._directory / "override.json")]
        project = ["-p", f"slowrank-services-{self._service}", "--project-directory", str(ROOT)]
        assigned = [f"{name}={value}" for name, value in variables.items()]
        return ["env", *assigned, "docker", "compose", *project, *files, *arguments]


def _answers(*command: str) -> bool:
    try:
        asked = subprocess.run(command, capture_output=True, timeout=ASK_SECONDS, check=False)
    except (FileNotFoundError, PermissionError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0
