"""The command line's way to the API, where something else answers."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from typer.testing import CliRunner

from slowrank.cli import app


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
def test_what_is_not_our_api_is_told_so(stranger, command, body):
    """Not a crash, which has the exit code of findings that are there."""
    url, bodies = stranger
    bodies.append(body)
    result = CliRunner().invoke(app, [*command, "--url", url, "--key", "k"])
    assert result.exit_code == 2
    assert "not slowrank's API" in result.stderr


def test_a_key_file_that_is_no_text_is_no_key(tmp_path, monkeypatch):
    """It is read as if there were none."""
    (tmp_path / "key").write_bytes(b"\xff\xfe\x00")
    monkeypatch.setenv("SLOWRANK_KEY_FILE", str(tmp_path / "key"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    result = CliRunner().invoke(app, ["chronic"])
    assert result.exit_code == 2
    assert "no API key" in result.stderr
