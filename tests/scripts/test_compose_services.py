"""`make services` where a container engine answers; the engine here is a stand-in that notes its calls."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
# `up` leaves a mark for its project, `ps` prints an id while the mark is there, `down` takes it away.
DOCKER = """#!/bin/sh
printf '%s\\n' "$*" >> "$ENGINE/calls"
[ "$1" = info ] && exit "${INFO:-0}"
project=$3
case "$*" in
  *" up "*) [ -z "$BROKEN" ] || exit 1; touch "$ENGINE/$project" ;;
  *" ps "*) [ ! -e "$ENGINE/$project" ] || echo 0123abcd ;;
  *" down "*) rm -f "$ENGINE/$project" ;;
esac
"""


@dataclass
class Checkout:
    """A checkout of its own, so that the servers of this one are neither found nor touched."""

    root: Path
    engine: Path

    def services(self, *words, **env):
        path = f"{self.root / 'bin'}:{os.environ['PATH']}"
        clean = {k: v for k, v in os.environ.items() if not k.startswith("SLOWRANK_")}
        return subprocess.run(
            [sys.executable, str(self.root / "scripts/services.py"), *words],
            env=clean | {"PATH": path, "ENGINE": str(self.engine)} | env,
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def calls(self):
        return (self.engine / "calls").read_text().splitlines() if (self.engine / "calls").exists() else []

    @property
    def running(self):
        return {path.name for path in self.engine.iterdir()} - {"calls"}


@pytest.fixture
def checkout(tmp_path):
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    shutil.copy(ROOT / "docker-compose.yml", tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/docker").write_text(DOCKER)
    (tmp_path / "bin/docker").chmod(0o755)
    (tmp_path / "engine").mkdir()
    return Checkout(tmp_path, tmp_path / "engine")


def test_compose_serves_prints_where_and_stops_exactly_these(checkout):
    """Kafka and the database come up as projects of their own, are found again, and are gone after `down`."""
    up = checkout.services("up")
    assert up.returncode == 0, up.stderr
    assert checkout.running == {"slowrank-services-kafka", "slowrank-services-db"}
    started = [call.split()[-1] for call in checkout.calls if " up " in call]
    assert sorted(started) == ["db", "kafka"]
    exports = dict(line.split("=", 1) for line in up.stdout.splitlines() if line.startswith("SLOWRANK_"))
    assert re.fullmatch(r"127\.0\.0\.1:\d+", exports["SLOWRANK_TEST_KAFKA"])
    assert re.fullmatch(r"postgresql://postgres:\w+@127\.0\.0\.1:\d+/postgres", exports["SLOWRANK_TEST_DSN"])

    assert "already running" in checkout.services("up").stdout
    env = checkout.services("env").stdout
    assert all(f"export {name}={value}" in env for name, value in exports.items())

    down = checkout.services("down")
    assert down.returncode == 0, down.stderr
    assert not checkout.running
    assert checkout.services("env").stdout.strip() == ""
    assert not (checkout.root / ".services/compose/db").exists()


def test_what_compose_is_given_fits_the_file(checkout):
    """Every guard of docker-compose.yml has a value, and what is overridden is there to be overridden."""
    checkout.services("up")
    file = yaml.safe_load((checkout.root / "docker-compose.yml").read_text())
    for call in [c for c in checkout.calls if " up " in c]:
        files = re.findall(r"-f (\S+)", call)
        assert files[0] == str(checkout.root / "docker-compose.yml")
        override = json.loads(Path(files[1]).read_text())
        assert set(override["services"]) <= set(file["services"])
        assert set(file["services"]["db"]["secrets"]) == set(override["secrets"]) <= set(file["secrets"])
        for secret in override["secrets"].values():
            assert Path(secret["file"]).stat().st_mode & 0o777 == 0o600
    guards = set(re.findall(r"\$\{(\w+):\?", (checkout.root / "docker-compose.yml").read_text()))
    run = json.loads((checkout.root / ".services/runs/kafka.json").read_text())
    given = {word.split("=")[0] for word in run["finish"][1:] if re.match(r"[A-Z_]+=", word)}
    assert guards <= given
    checkout.services("down")


def test_run_takes_its_servers_along(checkout):
    """The command gets the addresses, and what was started for it is stopped after it."""
    done = checkout.services("run", "--", "printenv", "SLOWRANK_TEST_DSN")
    assert done.returncode == 0, done.stderr
    assert "@127.0.0.1:" in done.stdout
    assert not checkout.running


def test_a_service_that_does_not_start_leaves_nothing(checkout):
    """The message says how to do without the engine, and the first service is taken down again."""
    up = checkout.services("up", BROKEN="1")
    assert up.returncode == 1
    assert "SLOWRANK_SERVICES=local" in up.stderr
    assert checkout.services("env").stdout.strip() == ""


@pytest.mark.slow
def test_the_engine_is_asked_only_where_it_may_serve(checkout):
    """`local` never asks; an engine that does not answer in time does not serve; an unknown value is
    refused."""
    decide = [
        sys.executable,
        "-c",
        "from servers import compose; compose.ASK_SECONDS = 1; print(compose.wanted())",
    ]
    env = {k: v for k, v in os.environ.items() if not k.startswith("SLOWRANK_")} | {
        "PATH": f"{checkout.root / 'bin'}:{os.environ['PATH']}",
        "ENGINE": str(checkout.engine),
        "PYTHONPATH": str(checkout.root / "scripts"),
    }

    def wanted(**more):
        done = subprocess.run(decide, env=env | more, capture_output=True, text=True, check=False)
        return done.stdout.strip() or done.stderr.splitlines()[-1]

    assert wanted() == "True"
    asked = len(checkout.calls)
    assert wanted(SLOWRANK_SERVICES="local") == "False"
    assert len(checkout.calls) == asked
    assert wanted(INFO="1") == "False"
    assert "SLOWRANK_SERVICES=docker" in wanted(SLOWRANK_SERVICES="docker")
    (checkout.root / "bin/docker").write_text("#!/bin/sh\nexec sleep 30\n")
    assert wanted() == "False"
