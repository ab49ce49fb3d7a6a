"""The settings as the commands read them."""

import ast
from pathlib import Path

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from cli import app
from cli.admin.config import load_settings, load_tuning
from streams.cluster.gray_model import fingerprint
from tests.streams.cluster.weak_signs import REGION

CLI = Path(__file__).resolve().parents[3] / "cli"


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
    """It names the file, or the form of the value."""
    monkeypatch.chdir(tmp_path)
    Path("slowrank.toml").write_bytes(file)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    result = CliRunner().invoke(app, ["config", "check"])
    assert result.exit_code == 2, result.output
    assert said in result.output


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [("WEBHOOK_ALLOW_PORTS", "8999", "[8999]"), ("API_ALLOWED_HOSTS", '"a"', '["a"]')],
)
def test_one_value_where_a_list_is_needed_is_shown_as_a_list(name, value, expected, monkeypatch, tmp_path):
    """As it has to be written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(f"SLOWRANK_{name}", value)
    assert f"(SLOWRANK_{name}): a list is needed, written in JSON: {expected}\n" in refusal()


def test_every_wrong_setting_is_reported_with_its_variable(monkeypatch, tmp_path):
    """All at once, each in a line: a variable by its name in the environment, the file's by its own."""
    monkeypatch.chdir(tmp_path)
    Path("slowrank.toml").write_text("api_port = 70000\n")
    monkeypatch.setenv("SLOWRANK_KAFKA_BOOTSTRAP", "x")
    told = refusal().splitlines()
    assert "  api_port: Input should be less than or equal to 65535" in told
    assert any(line.startswith("  kafka_bootstrap (SLOWRANK_KAFKA_BOOTSTRAP): must be host") for line in told)


@pytest.mark.parametrize("command", ["config check", "topics create", "api run", "backtest rows.csv"])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[detector.peer_step]\nmode = "off"', "'detector' (did you mean detectors?)"),
        ('kafka_bootstrp = "a:1"', "'kafka_bootstrp' (did you mean kafka_bootstrap?)"),
        ('[job."rl-*".detectors.peer_step]\nmode = "off"\n[xyz]', "'job' (did you mean jobs?), 'xyz'"),
    ],
)
def test_an_unknown_name_is_refused(command, text, said, monkeypatch, tmp_path):
    """By every command: what is misspelt would silently change nothing."""
    monkeypatch.chdir(tmp_path)
    Path("slowrank.toml").write_text(text)
    result = CliRunner().invoke(app, command.split())
    assert result.exit_code == 2, result.output
    assert f"slowrank.toml sets {said}: not a setting" in result.output


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        (
            "SLOWRANK_KAFKA_BOOTSTRP",
            "'SLOWRANK_KAFKA_BOOTSTRP' is set but is not a setting (did you mean SLOWRANK_KAFKA_B",
        ),
        ("SLOWRANK_DATABASE_URI", "(did you mean SLOWRANK_DATABASE_URL?)"),
        ("SLOWRANK_API_SERVICE_PORT", ""),  # Kubernetes' own, of a service called slowrank-api
        ("SLOWRANK_JOB_ID", ""),
        ("SLOWRANK_KEY", ""),
    ],
)
def test_a_mistyped_variable_is_reported(variable, said, monkeypatch, tmp_path, capsys):
    """It would silently change nothing; the environment's other variables are not checked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(variable, "1")
    load_settings()
    told = capsys.readouterr().err
    assert said in told
    assert bool(said) == bool(told)


@pytest.mark.parametrize("option", ["--config", "--compare"])
def test_an_unknown_name_in_another_file_is_refused(option, monkeypatch, tmp_path):
    """No effect is printed for a setting that does not exist."""
    monkeypatch.chdir(tmp_path)
    Path("other.toml").write_text("[detectorz.peer_step]\nmin_effect = 0.5\n")
    result = CliRunner().invoke(app, ["backtest", "rows.csv", option, "other.toml"])
    assert result.exit_code == 2, result.output
    assert "other.toml sets 'detectorz' (did you mean detectors?)" in result.output


@pytest.mark.parametrize("name", ["SLOWRANK_CLUSTER", "SLOWRANK_NODE"])
@pytest.mark.parametrize("value", ["my cluster", "größe", "a" * 129, "a\n"])
def test_a_name_no_record_may_carry_is_no_setting(name, value, monkeypatch, tmp_path):
    """It is refused at the start, not by a worker, record after record."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(name, value)
    result = CliRunner().invoke(app, ["config", "check"])
    assert result.exit_code == 2, result.output
    assert "1 to 128 of A-Z" in result.output


def refusal():
    """Return the message of ``config check`` about settings that it refuses."""
    result = CliRunner().invoke(app, ["config", "check"])
    assert result.exit_code == 2, result.output
    return result.output


@pytest.mark.parametrize("servers", ["", ":::", "kafka", "kafka:", "kafka:x", "kafka:99999", "a:1,", "a b:1"])
def test_servers_without_an_address_are_no_setting(servers, monkeypatch, tmp_path):
    """They are refused at the start, not in a thread that ends unheard."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLOWRANK_KAFKA_BOOTSTRAP", servers)
    assert "must be host:port" in refusal()


def test_servers_with_addresses_are_a_setting():
    """Names, IPv4 and IPv6, one or more."""
    from slowrank.settings import Settings

    servers = "kafka-0.kafka:9092, 10.0.0.1:9092,[::1]:19092"
    assert Settings(kafka_bootstrap=servers).kafka_bootstrap == servers


@pytest.mark.parametrize("seconds", ["14.9", "19.9", "0", "-1"])
def test_a_lease_outlasts_an_attempt(seconds, monkeypatch, tmp_path):
    """A shorter one, in which another notifier would send the same again, is refused with both limits."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLOWRANK_NOTIFIER_LEASE_SECONDS", seconds)
    output = refusal()
    assert "notifier_lease_seconds" in output
    assert "must be 20 or more: one attempt may take 15 s" in output


def test_settings_are_read_in_one_place():
    """No command makes its own Settings, which would end in a traceback when they cannot be read."""
    makers = {
        path.name
        for path in CLI.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Settings"
    }
    assert makers == {"config.py"}


def test_flags_come_before_the_environment(monkeypatch, tmp_path):
    """Flags > SLOWRANK_* > slowrank.toml > defaults."""
    from cli.admin.config import load_settings

    monkeypatch.chdir(tmp_path)
    Path("slowrank.toml").write_text(
        'node = "from-file"\ncluster = "from-file"\ntopic_prefix = "from-file-"\n'
    )
    monkeypatch.setenv("SLOWRANK_NODE", "from-environment")
    monkeypatch.setenv("SLOWRANK_CLUSTER", "from-environment")
    settings = load_settings(cluster="from-flag")
    assert (settings.cluster, settings.node) == ("from-flag", "from-environment")
    assert (settings.topic_prefix, settings.kafka_bootstrap) == ("from-file-", "127.0.0.1:9092")


def test_tables_of_detectors_are_part_of_the_settings(monkeypatch, tmp_path):
    """`config check` takes them for what they are, and refuses those that cannot be used."""
    monkeypatch.chdir(tmp_path)
    Path("slowrank.toml").write_text('[detectors.hang]\nmode = "shadow"')
    assert CliRunner().invoke(app, ["config", "check"]).exit_code == 0
    Path("slowrank.toml").write_text('[detectors.hang]\nmode = "loud"')
    result = CliRunner().invoke(app, ["config", "check"])
    assert result.exit_code == 2
    assert "[detectors.hang] mode = 'loud'" in result.output


def test_config_detectors_shows_what_holds(monkeypatch, tmp_path):
    """Modes and settings for a cluster and a job, with the table that sets each and the default."""
    monkeypatch.chdir(tmp_path)
    Path("slowrank.toml").write_text(
        '[detectors.peer_step]\nmin_effect = 0.03\n[detectors."event.xid.13"]\nmode = "off"\n'
        '[clusters.a.detectors.silence]\nmode = "shadow"\n[jobs."rl-*".detectors.peer_step]\nmode = "off"'
    )
    args = ["config", "detectors", "--cluster", "a", "--job", "rl-7"]
    lines = CliRunner().invoke(app, args).output.splitlines()
    shown = {line.split()[0]: line for line in lines if not line.startswith(" ")}
    assert shown["peer_step"].split()[1] == "off"
    assert '[jobs."rl-*"]' in shown["peer_step"]
    assert shown["silence"].split()[1] == "shadow"
    assert shown["event.xid.13"].split()[1] == "off"
    assert "  min_effect = 0.03  (default 0.02)" in lines
    assert "event.xid.79" not in shown


def test_config_detectors_shows_which_model_holds(monkeypatch, tmp_path):
    """By the mark that stands in the evidence; where there is none, nothing."""
    monkeypatch.chdir(tmp_path)
    Path("gray.json").write_bytes(msgspec.json.encode(REGION))
    Path("slowrank.toml").write_text('[clusters.a.detectors.gray]\nmodel = "gray.json"\n')
    shown = [CliRunner().invoke(app, ["config", "detectors", "--cluster", name]).output for name in "ab"]
    assert [f"  model = {fingerprint(REGION)}, 4 features" in output for output in shown] == [True, False]


def test_what_stands_in_a_file_does_not_drive_the_terminal(tmp_path, capsys):
    """A refused table is reported without its control and direction characters."""
    path = tmp_path / "slowrank.toml"
    path.write_text('[detectors."\\u001b[31m\\u202e"]\nmode = "off"\n')
    with pytest.raises(typer.Exit):
        load_tuning(load_settings(), path)
    told = capsys.readouterr().err
    assert "no such detector" in told
    assert not {"\x1b", "\u202e"} & set(told)
