"""The settings as the commands read them."""

import ast
from pathlib import Path

import pytest
from typer.testing import CliRunner

from slowrank.cli import app

CLI = Path(__file__).resolve().parents[3] / "slowrank/cli"


@pytest.mark.parametrize(
    "command",
    [
        ["topics", "create"],
        ["topics", "describe"],
        ["streams", "run"],
        ["streams", "worker", "--role", "detect"],
        ["streams", "record", "-o", "x.ndjson"],
        ["migrate"],
        ["api", "run"],
        ["notifier", "run"],
        ["exporter", "run", "--once"],
        ["exporter", "once"],
        ["up"],
        ["demo", "--once"],
        ["dlq", "list"],
        ["config", "check"],
    ],
    ids=" ".join,
)
def test_a_setting_that_cannot_be_read_is_named(command, monkeypatch, tmp_path):
    """A command with a wrong setting ends with status 2 and one message that names it, no traceback."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLOWRANK_TOPIC_PARTITIONS", "many")
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2, result.output
    assert "topic_partitions" in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("file", "variables", "said"),
    [
        (b'cluster = "a\n', {}, "slowrank.toml"),
        (b"\xff\xfe", {}, "slowrank.toml"),
        (b"", {"SLOWRANK_WEBHOOK_ALLOW_HTTP": "hooks.example.org"}, "written in JSON"),
    ],
)
def test_settings_of_a_broken_form_end_in_one_message(file, variables, said, monkeypatch, tmp_path):
    """It says which file, or how the value is written."""
    monkeypatch.chdir(tmp_path)
    Path("slowrank.toml").write_bytes(file)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    result = CliRunner().invoke(app, ["config", "check"])
    assert result.exit_code == 2, result.output
    assert said in result.output


@pytest.mark.parametrize("name", ["SLOWRANK_CLUSTER", "SLOWRANK_NODE"])
@pytest.mark.parametrize("value", ["my cluster", "größe", "a" * 129, "a\n"])
def test_a_name_no_record_may_carry_is_no_setting(name, value, monkeypatch, tmp_path):
    """It is refused at the start, not by a worker, record after record."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(name, value)
    result = CliRunner().invoke(app, ["config", "check"])
    assert result.exit_code == 2, result.output
    assert "1 to 128 of A-Z" in result.output


@pytest.mark.parametrize("servers", ["", ":::", "kafka", "kafka:", "kafka:x", "kafka:99999", "a:1,", "a b:1"])
def test_servers_without_an_address_are_no_setting(servers, monkeypatch, tmp_path):
    """They are refused at the start, not in a thread that ends unheard."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLOWRANK_KAFKA_BOOTSTRAP", servers)
    result = CliRunner().invoke(app, ["config", "check"])
    assert result.exit_code == 2, result.output
    assert "must be host:port" in result.output


def test_servers_with_addresses_are_a_setting():
    """Names, IPv4 and IPv6, one or more."""
    from slowrank.settings import Settings

    servers = "kafka-0.kafka:9092, 10.0.0.1:9092,[::1]:19092"
    assert Settings(kafka_bootstrap=servers).kafka_bootstrap == servers


def test_settings_are_read_in_one_place():
    """No command makes its own Settings, which would end in a traceback when they cannot be read."""
    makers = {
        path.name
        for path in CLI.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Settings"
    }
    assert makers == {"config.py"}


def test_flags_come_before_the_environment(monkeypatch, tmp_path):
    """Flags > SLOWRANK_* > slowrank.toml > defaults."""
    from slowrank.cli.config import load_settings

    monkeypatch.chdir(tmp_path)
    Path("slowrank.toml").write_text(
        'node = "from-file"\ncluster = "from-file"\ntopic_prefix = "from-file-"\n'
    )
    monkeypatch.setenv("SLOWRANK_NODE", "from-environment")
    monkeypatch.setenv("SLOWRANK_CLUSTER", "from-environment")
    settings = load_settings(cluster="from-flag")
    assert (settings.cluster, settings.node) == ("from-flag", "from-environment")
    assert (settings.topic_prefix, settings.kafka_bootstrap) == ("from-file-", "127.0.0.1:9092")
