"""The systemd units, read as data and, where systemd is installed, by systemd itself."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli import app
from slowrank.settings import Settings

FOLDER = Path(__file__).resolve().parents[2] / "deploy/systemd"
FILES = {path.stem: path for path in sorted(FOLDER.glob("*.service"))}
every_unit = pytest.mark.parametrize("name", FILES)
HARDENED = {
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "DynamicUser": "yes",
    "RestrictSUIDSGID": "yes",
    "ProtectKernelModules": "yes",
}


def unit(name):
    """Section -> key -> values; a key may stand more than once."""
    sections: dict[str, dict[str, list[str]]] = {}
    current: dict[str, list[str]] | None = None
    for line in FILES[name].read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        if heading := re.fullmatch(r"\[(\w+)\]", line):
            current = sections.setdefault(heading[1], {})
            continue
        key, equals, value = line.partition("=")
        assert equals, line
        assert current is not None
        current.setdefault(key, []).append(value)
    return sections


def test_every_process_has_a_unit():
    """Exporter, stream workers, API and notifier."""
    assert set(FILES) == {f"slowrank-{role}" for role in ("exporter", "streams", "api", "notifier")}


@every_unit
def test_it_starts_a_command_there_is(name):
    """What systemd starts is a command of this version with options it knows."""
    [command] = unit(name)["Service"]["ExecStart"]
    program, *words = command.split()
    assert program == "/opt/slowrank/bin/slowrank"
    result = CliRunner().invoke(app, [*words, "--help"])
    assert result.exit_code == 0, result.output


@every_unit
def test_it_has_no_rights_it_does_not_use(name):
    """A user that exists only while it runs, a read-only system, bounded memory, capabilities by name."""
    service = unit(name)["Service"]
    for key, value in HARDENED.items():
        assert service[key] == [value], key
    [calls] = service["SystemCallFilter"]
    own = ["adjtimex", "clock_adjtime"] if "exporter" in name else []
    assert calls.split() == ["@system-service", *own]
    assert service["MemoryMax"]
    assert service["CapabilityBoundingSet"] == (["CAP_SYSLOG"] if "exporter" in name else [""])


def test_the_exporter_may_read_the_clock_and_the_devices():
    """ProtectClock= refuses adjtimex, and before systemd 253 all of /dev that is not allowed by name."""
    service = unit("slowrank-exporter")["Service"]

    assert not {"ProtectClock", "PrivateDevices", "DeviceAllow", "DevicePolicy"} & service.keys()


@every_unit
def test_it_comes_back_and_is_enabled_at_boot(name):
    """A process that ends is started again, for ever."""
    sections = unit(name)
    assert sections["Service"]["Restart"] == ["always"]
    assert sections["Unit"]["StartLimitIntervalSec"] == ["0"]
    assert sections["Install"]["WantedBy"] == ["multi-user.target"]


@every_unit
def test_its_settings_exist_and_secrets_are_credentials(name):
    """Each SLOWRANK_ variable is a setting; each secret is a file that systemd hands in."""
    service = unit(name)["Service"]
    given = dict(variable.split("=", 1) for variable in service.get("Environment", []))
    credentials = {credential.split(":")[0] for credential in service.get("LoadCredential", [])}
    for variable, value in given.items():
        if variable.startswith("SLOWRANK_"):
            assert variable.removeprefix("SLOWRANK_").lower() in Settings.model_fields
        if variable.endswith("_FILE"):
            assert value.removeprefix("%d/") in credentials
    assert {value.removeprefix("%d/") for value in given.values() if value.startswith("%d/")} == credentials


def test_the_exporter_leaves_the_cores_to_training():
    """It is polite, bounded, and watched by systemd, which it tells that it ticks."""
    service = unit("slowrank-exporter")["Service"]
    assert service["Type"] == ["notify"]
    assert service["WatchdogSec"] == ["60"]
    polite = {"CPUQuota": "20%", "MemoryMax": "200M", "Nice": "10", "IOSchedulingClass": "idle"}
    assert {key: service[key] for key in polite} == {key: [value] for key, value in polite.items()}


@every_unit
def test_systemd_understands_it(name, tmp_path):
    """systemd finds no unknown key, section or value; only the program is another one here."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze on this machine")
    text = re.sub(r"^ExecStart=\S+.*$", "ExecStart=/bin/true", FILES[name].read_text(), flags=re.MULTILINE)
    copy = tmp_path / FILES[name].name
    copy.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(copy)],
        capture_output=True,
        text=True,
        check=False,
    )
    complaints = [line for line in done.stderr.splitlines() if str(copy) in line or copy.name in line]
    assert not complaints
