"""docker-compose.yml read as data: nothing is exposed, guessable, privileged or unwatched."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from typer.testing import CliRunner

from cli import app
from cli.admin.init import secret_files, settings
from slowrank.settings import Settings
from store.migrate import migrate

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"].startswith("slowrank:")}
every_service = pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)
our_service = pytest.mark.parametrize("service", OURS.values(), ids=OURS)


@every_service
def test_ports_are_published_on_loopback_only(service):
    """No service is reachable from another machine until somebody decides so."""
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


@every_service
def test_it_is_watched(service):
    """A service has a health check or a restart policy; a one-shot says that it is one."""
    assert "healthcheck" in service or service["restart"] in ("unless-stopped", "no")


@every_service
def test_it_has_no_privileges_it_does_not_use(service):
    """All capabilities are dropped, none can be gained, and memory is bounded."""
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["mem_limit"]
    assert not service.get("privileged")


@our_service
def test_our_containers_are_read_only_and_not_root(service):
    """Our image writes to /tmp and to named volumes only, as the user who owns the secrets."""
    assert service["read_only"] is True
    assert service["user"].startswith("${SLOWRANK_UID:?")


@every_service
def test_no_password_is_written_down(service):
    """Passwords come as files: no variable whose name speaks of a secret holds anything but a path to one."""
    for name, value in service.get("environment", {}).items():
        if re.search(r"PASSWORD|SECRET|TOKEN|KEY|DATABASE", name):
            assert name.endswith("_FILE")
            assert str(value).startswith("/run/secrets/")


def test_compose_refuses_to_start_before_init():
    """Every variable without a default is a guard naming `slowrank init`, and init writes exactly those."""
    required = set(re.findall(r"\$\{(\w+):\?run slowrank init\}", TEXT))
    bare = set(re.findall(r"\$\{(\w+)\}", TEXT))
    written = {line.split("=")[0] for line in settings(1, 1).splitlines() if "=" in line}
    assert not bare
    assert required
    assert required <= written


def test_init_writes_the_secret_files_compose_reads():
    """The secrets of the file and those of `slowrank init` are the same set, and every one is used."""
    files = {Path(secret["file"]).name for secret in COMPOSE["secrets"].values()}
    used = {name for service in SERVICES.values() for name in service.get("secrets", [])}
    assert files == set(secret_files()) == used


@our_service
def test_command_exists(service):
    """Every `slowrank …` a container runs, its health check included, is a command of this version."""
    commands = [service["command"]]
    if "healthcheck" in service:
        _, program, *check = service["healthcheck"]["test"]
        assert program == "slowrank"
        commands.append(check)
    for words in commands:
        result = CliRunner().invoke(app, [*words, "--help"])
        assert result.exit_code == 0, f"slowrank {' '.join(words)}: {result.output}"


@pytest.mark.slow
def test_the_simulator_simulates(tmp_path):
    """What its container runs is what the command takes; here into a file, until the fault begins."""
    words = list(SERVICES["simulator"]["command"])
    where = words.index("--kafka")
    assert words[where + 1] == SERVICES["simulator"]["environment"]["SLOWRANK_KAFKA_BOOTSTRAP"]
    there = [*words[:where], *words[where + 2 :], "-o", str(tmp_path / "a.ndjson")]
    result = CliRunner().invoke(app, [*there, "--seconds", "181", "--speed", "max"])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "a.ndjson").stat().st_size > 0


@our_service
def test_settings_exist(service):
    """A SLOWRANK_ variable that no setting reads would be a typing error nobody notices."""
    names = {name for name in service["environment"] if name.startswith("SLOWRANK_")} - {"SLOWRANK_URL"}
    assert {name.removeprefix("SLOWRANK_").lower() for name in names} <= set(Settings.model_fields)


@every_service
def test_dependencies_and_volumes_exist(service):
    """What a service waits for and mounts is defined in the same file or lies in the repository."""
    assert set(service.get("depends_on", {})) <= set(SERVICES)
    for volume in service.get("volumes", []):
        source = volume.split(":")[0]
        assert (ROOT / source).is_file() if source.startswith("./") else source in COMPOSE["volumes"]


def test_logins_of_the_database_have_the_rights_of_their_process_only(private_timescale, tmp_path):
    """After roles.sh and the migrations a process can read findings and can neither create nor drop."""
    psql = tmp_path / "psql"
    psql.write_text(f'#!/bin/sh\nexec {shlex.join(private_timescale.psql)} "$@"\n')
    psql.chmod(0o755)
    passwords = {
        f"{name.upper()}_PASSWORD": f"it's {name}'s $ecret" for name in ("streams", "api", "notifier")
    }
    env = {"POSTGRES_USER": "postgres", "POSTGRES_DB": "postgres", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run([ROOT / "deploy/db/roles.sh"], env=env | passwords, check=True)
    migrate(private_timescale.dsn)
    for login in ("streams", "api", "notifier"):
        dsn = private_timescale.dsn.replace("postgres@", f"{login}@")
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("SELECT count(*) FROM findings")
            for forbidden in ("DROP TABLE findings", "CREATE TABLE t (i int)", "CREATE ROLE intruder"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(forbidden)
    with psycopg.connect(private_timescale.dsn) as connection:
        hashed = connection.execute(
            "SELECT rolname FROM pg_authid WHERE rolpassword LIKE 'SCRAM-SHA-256$%' ORDER BY 1"
        )
        assert [name for (name,) in hashed] == ["api", "notifier", "streams"]
