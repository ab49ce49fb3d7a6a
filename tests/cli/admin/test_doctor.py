"""slowrank doctor: what it finds in the answers of the API and on the node, and its exit codes."""

import json
import socket
from datetime import UTC, datetime

import pytest
from typer.testing import CliRunner

from cli import app
from cli.admin.doctor import Check, exit_code, lines, telemetry, this_node, webhooks

NOW = datetime(2026, 11, 20, 8, 0, tzinfo=UTC)


def fleet(*, nodes=2, age=3.0, states=("ok", "ok"), kinds=()):
    """An answer of /fleet."""
    return {
        "numbers": {
            "nodes": nodes,
            "gpus": 8 * nodes,
            "newest_sample_at": 1000 * (NOW.timestamp() - age),
            "open_by_kind": dict.fromkeys(kinds, 1),
        },
        "racks": [{"nodes": [{"node": f"n{i}", "state": state} for i, state in enumerate(states)]}],
    }


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (fleet(), [("telemetry", "ok")]),
        (fleet(nodes=0), [("telemetry", "warn")]),
        (fleet(age=300.0), [("telemetry", "fail")]),
        (fleet(states=("ok", "silent")), [("telemetry", "ok"), ("blind", "warn")]),
        (fleet(kinds=("self.lag", "hang.job")), [("telemetry", "ok"), ("slowrank", "fail")]),
    ],
)
def test_telemetry(answer, found):
    """None, old, of silent nodes, and findings of slowrank about itself."""
    assert [(check.name, check.state) for check in telemetry(answer, NOW)] == found


def test_silent_nodes_are_named_up_to_a_few():
    """The first five, and one as one."""
    [_, one] = telemetry(fleet(states=("ok", "silent")), NOW)
    assert one.found == "1 node is silent: n1"
    [_, blind] = telemetry(fleet(nodes=9, states=("silent",) * 9), NOW)
    assert "9 nodes are silent: n0, n1, n2, n3, n4, …" in blind.found


@pytest.mark.parametrize(("status", "state"), [("active", "ok"), ("failing", "fail"), ("disabled", "warn")])
def test_webhooks(status, state):
    """One that fails is broken, one that is disabled needs attention, and so does having none."""
    [check] = webhooks({"items": [{"id": "whk_1", "format": "slack", "status": status}]}, NOW)
    assert check.state == state
    [none] = webhooks({"items": []}, NOW)
    assert none.state == "warn"


def test_the_node_is_what_an_exporter_would_read(tmp_path):
    """GPUs, ports and the kernel log, of which XIDs are read."""
    assert this_node(tmp_path).state == "off"
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / "dev" / name).touch()
    (tmp_path / "sys/class/infiniband/mlx5_0/ports/1").mkdir(parents=True)
    without_log = this_node(tmp_path)
    assert (without_log.state, without_log.found[:32]) == ("warn", "2 GPUs, 1 InfiniBand or RoCE por")
    (tmp_path / "dev/kmsg").touch()
    assert this_node(tmp_path).state == "ok"


@pytest.mark.parametrize(
    ("states", "code"),
    [(["ok", "off"], 0), (["ok", "warn"], 1), (["warn", "fail"], 2), (["off", "off"], 3)],
)
def test_exit_codes_are_those_of_nagios_plugins(states, code):
    """The worst counts; where no server is configured nothing is known."""
    checks = [Check("settings", "ok", ""), *(Check(f"c{i}", state, "") for i, state in enumerate(states))]
    assert exit_code(checks) == code


def test_what_is_not_well_has_a_next_step(monkeypatch):
    """In a line of its own; what is well has none."""
    checks = [Check("a", "ok", "fine", "nothing"), Check("bcd", "fail", "broken\x1b[0m", "repair")]
    monkeypatch.setenv("NO_COLOR", "1")
    assert list(lines(checks)) == ["✔ a    fine", "✘ bcd  broken\ufffd[0m", "       → repair"]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run doctor where nothing is configured but what is given."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def run(*arguments, **env):
        result = CliRunner().invoke(app, ["doctor", *arguments], env=env)
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result

    return run


def test_a_machine_where_nothing_is_configured(run):
    """It is unknown whether anything works, and each line shows how to begin."""
    result = run()
    assert result.exit_code == 3
    assert "slowrank up" in result.stdout


def test_servers_that_do_not_answer_are_broken(run):
    """The broker and the API that the settings name."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = run("--json", SLOWRANK_KAFKA_BOOTSTRAP=address, SLOWRANK_URL=f"http://{address}")
    assert result.exit_code == 2
    states = {check["name"]: check["state"] for check in json.loads(result.stdout)}
    assert (states["kafka"], states["api"]) == ("fail", "fail")
