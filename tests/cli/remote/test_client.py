"""The command line's way to the API, where something else answers."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from typer.testing import CliRunner

from cli import app


@pytest.fixture
def stranger():
    """A web server that answers everything with one body, and the list to put that body in."""
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("content-length", str(len(bodies[0])))
            self.end_headers()
            self.wfile.write(bodies[0])

        def log_message(self, format, *args): ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", bodies
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("command", [("chronic",), ("findings", "list"), ("webhook", "list")])
@pytest.mark.parametrize("body", [b"<html>hello</html>", b"[]", b"{}", b"\xff\xfe"])
def test_what_is_not_our_api_is_reported(stranger, command, body):
    """Not a crash, which has the exit code of findings that are there."""
    url, bodies = stranger
    bodies.append(body)
    result = CliRunner().invoke(app, [*command, "--url", url, "--key", "k"])
    assert result.exit_code == 2
    assert "not slowrank's API" in result.stderr


@pytest.mark.parametrize(
    ("subject", "shown"),
    [
        ({"type": "gpu", "node": "n1", "gpu_index": 2, "rank": 10, "rack": "r1"}, "n1 GPU 2"),
        ({"type": "rank", "job_id": "j1", "rank": 10, "coords": {"dp": 1}}, "j1 rank 10"),
        ({"type": "nic", "node": "n1", "nic": "mlx5_0", "switch": "leaf-3"}, "n1 mlx5_0"),
        ({"type": "node", "node": "n1", "rack": "r1", "switch": "leaf-3"}, "n1"),
        ({"type": "group", "node": "n1", "job_id": "j1", "coords": {"pp": 2, "dp": 1}}, "n1 dp=1 pp=2"),
        ({"type": "job", "job_id": "j1", "coords": {"pp": 3}}, "j1 pp=3"),
        ({"type": "job", "job_id": "j1"}, "j1"),
        ({"type": "rack", "rack": "r1"}, "rack r1"),
        ({"type": "switch", "switch": "leaf-3"}, "switch leaf-3"),
        ({"type": "switch", "switch": "leaf-3", "rail": "4"}, "switch leaf-3 rail 4"),
        ({"type": "switch", "rail": "4"}, "rail 4"),
        ({"type": "telemetry"}, "prod-a"),
    ],
)
def test_a_list_names_what_each_finding_is_about(stranger, subject, shown):
    """A rack, a switch and a group of ranks by their own names, and not by where they are."""
    url, bodies = stranger
    finding = {
        "id": "fnd_1",
        "severity": "error",
        "status": "open",
        "kind": "k",
        "onset": "2026-11-20T07:34:54.876Z",
        "confidence": 0.9,
        "action": {"code": "RUN_DIAG"},
        "subject": {"cluster": "prod-a"} | subject,
    }
    bodies.append(json.dumps({"items": [finding], "next_cursor": None}).encode())
    result = CliRunner().invoke(app, ["findings", "list", "--url", url, "--key", "k"])
    assert result.exit_code == 0, result.output
    heads, row = result.stdout.splitlines()
    place = slice(heads.index("SUBJECT"), heads.index("KIND"))
    assert row[place].strip() == shown


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "No such file or directory"), (b"\xff\xfe\x00", "it is no text"), (b" \n", "is empty")],
)
def test_a_key_file_without_a_key_is_named(tmp_path, monkeypatch, content, reason):
    """No other key is taken for it, not even that of `slowrank up`."""
    path, up = tmp_path / "key", tmp_path / "config" / "slowrank"
    up.mkdir(parents=True)
    (up / "key").write_text("srk_up")
    if content is not None:
        path.write_bytes(content)
    monkeypatch.delenv("SLOWRANK_KEY", raising=False)
    monkeypatch.setenv("SLOWRANK_KEY_FILE", str(path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    result = CliRunner().invoke(app, ["chronic"])
    assert result.exit_code == 2
    assert str(path) in result.stderr
    assert reason in result.stderr
    assert "unset the variable" in result.stderr
