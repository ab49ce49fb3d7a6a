"""The command line's way to the API, where something else answers."""

import json
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from typer.testing import CliRunner

from cli import app


@contextmanager
def server(answer):
    """Serve what ``answer`` returns, status and body, to every request; the address is yielded."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            status, body = answer()
            self.send_response(status)
            self.send_header(
                "content-type", "application/json" if status == 200 else "application/problem+json"
            )
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_DELETE = do_GET

        def log_message(self, format, *args): ...

    http = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield f"http://127.0.0.1:{http.server_address[1]}"
    http.shutdown()
    http.server_close()


@pytest.fixture
def stranger():
    """A web server that answers everything with one body, and the list to put that body in."""
    bodies: list[bytes] = []
    with server(lambda: (200, bodies[0])) as url:
        yield url, bodies


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


@pytest.fixture
def no_key(monkeypatch, tmp_path):
    """An environment without an address and a key; returns the folder where one may be."""
    for name in ("URL", "KEY", "KEY_FILE"):
        monkeypatch.delenv(f"SLOWRANK_{name}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "slowrank").mkdir()
    return tmp_path / "slowrank"


@pytest.fixture
def refusing():
    """An API that refuses everything with one status and reason, and the list to put these in."""
    answers: list[tuple[int, str]] = []

    def problem():
        status, detail = answers[0]
        return status, json.dumps(
            {"type": "about:blank", "title": "no", "status": status, "detail": detail}
        ).encode()

    with server(problem) as url:
        yield url, answers


def test_a_refused_key_is_named_by_where_it_is_from(refusing, no_key, monkeypatch):
    """A flag before the variable, that before its file, and last the file of `slowrank up`."""
    url, answers = refusing
    answers.append((401, "send Authorization: Bearer srk_…"))
    (no_key / "key").write_text("srk_up")
    (no_key / "mine").write_text("srk_file")
    shown = []
    for setting in ({}, {"SLOWRANK_KEY_FILE": str(no_key / "mine")}, {"SLOWRANK_KEY": "srk_variable"}):
        for name, value in setting.items():
            monkeypatch.setenv(name, value)
        shown.append(CliRunner().invoke(app, ["findings", "list", "--url", url]))
    shown.append(CliRunner().invoke(app, ["findings", "list", "--url", url, "--key", "srk_flag"]))
    sources = [str(no_key / "key"), f"SLOWRANK_KEY_FILE, {no_key / 'mine'}", "SLOWRANK_KEY", "--key"]
    for result, source in zip(shown, sources, strict=True):
        assert result.exit_code == 2
        assert f"{url} does not accept the key from {source}: " in result.stderr
        assert "srk_" not in result.stderr


@pytest.mark.parametrize(
    ("status", "detail", "next_step"),
    [
        (403, "http:// is refused; or add '127.0.0.1' to SLOWRANK_WEBHOOK_ALLOW_HTTP", "restart them"),
        (403, "the key lacks the scope webhooks:admin", "Create another key"),
        (409, "format pagerduty needs as secret a PagerDuty integration key; none was sent", "--secret-file"),
    ],
)
def test_a_refused_webhook_comes_with_the_next_step(refusing, no_key, status, detail, next_step):
    """The API knows no options of commands and not where its own settings are read."""
    url, answers = refusing
    answers.append((status, detail))
    add = ["webhook", "add", "http://127.0.0.1:9/hook", "--url", url, "--key", "k"]
    result = CliRunner().invoke(app, add)
    assert result.exit_code == 2
    assert next_step in result.stderr


@pytest.mark.parametrize(
    ("command", "next_step"),
    [
        ("silence expire sil_nosuch", "`slowrank silence list`"),
        ("inhibition remove inh_nosuch", "`slowrank inhibition list`"),
        ("webhook remove whk_nosuch", "`slowrank webhook list`"),
    ],
)
def test_what_does_not_exist_comes_with_the_command_that_lists_it(refusing, no_key, command, next_step):
    """Of its own kind."""
    url, answers = refusing
    answers.append((404, "there is nothing of that name"))
    result = CliRunner().invoke(app, [*command.split(), "--url", url, "--key", "k"])
    assert result.exit_code == 2
    assert f"List what exists first: {next_step}." in result.stderr


@pytest.mark.parametrize(
    ("detail", "expected"),
    [
        ("#/body/min_severity: Input should be 'info'", "--min-severity: Input should be 'info'"),
        ("#/body/matchers/1/name: no label", "matcher 2 name: no label"),
        ("#/query/from: no time; #/query/kind/0: empty", "--since: no time; --kind 1: empty"),
        ("see https://example.org/#/body for more", "see https://example.org/#/body for more"),
    ],
)
def test_a_refused_value_is_named_by_its_option(refusing, no_key, detail, expected):
    """The API names a place in the request, which nobody wrote."""
    url, answers = refusing
    answers.append((422, detail))
    result = CliRunner().invoke(app, ["findings", "list", "--url", url, "--key", "k"])
    assert result.exit_code == 2
    assert f"HTTP 422: {expected}\n" in result.stderr


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", "no findings: nothing is slow, or no telemetry arrives yet"),
        ("--open --node n1", "no findings match --open --node: `slowrank findings list` shows all"),
        ("--kind link", "no findings match --kind: `slowrank findings list` shows all"),
    ],
)
def test_an_empty_list_says_what_left_findings_out(stranger, options, expected):
    """With options it says nothing of the fleet."""
    url, bodies = stranger
    bodies.append(b'{"items": [], "next_cursor": null}')
    result = CliRunner().invoke(app, ["findings", "list", *options.split(), "--url", url, "--key", "k"])
    assert result.exit_code == 0, result.output
    assert expected in result.stdout


def test_a_misspelt_kind_is_refused(stranger):
    """No finding will ever match it."""
    url, bodies = stranger
    bodies.append(b'{"items": [], "next_cursor": null}')
    options = ["--kind", "link.tcp_los", "--url", url, "--key", "k"]
    result = CliRunner().invoke(app, ["findings", "list", *options])
    assert result.exit_code == 2
    assert "no finding is of the kind 'link.tcp_los' (is it 'link.tcp_loss'?)" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "file", "expected"),
    [
        (["--url", "127.0.0.1:8080", "--key", "k"], None, "begins with http:// or https://"),
        (["--url", "http://127.0.0.1:8080"], None, "no API key: give --key or set SLOWRANK_KEY"),
        (["--url", "http://127.0.0.1:8080"], "gone", "where both are of a `slowrank demo` that has ended"),
    ],
)
def test_what_is_missing_before_a_request_is_named(no_key, monkeypatch, arguments, file, expected):
    """An address without its scheme, no key at all, and the key file of a demo that is over."""
    if file is not None:
        monkeypatch.setenv("SLOWRANK_KEY_FILE", str(no_key / file))
    result = CliRunner().invoke(app, ["findings", "list", *arguments])
    assert result.exit_code == 2
    assert expected in " ".join(result.stderr.split())


def test_an_address_that_an_earlier_up_left_is_named_as_such(no_key):
    """Nobody gave it: `slowrank up` has ended, or runs elsewhere."""
    (no_key / "url").write_text("http://127.0.0.1:1\n")
    left, given = (
        CliRunner().invoke(app, ["findings", "list", "--key", "k", *more])
        for more in ([], ["--url", "http://127.0.0.1:2"])
    )
    assert (
        f"no API answers at http://127.0.0.1:1, the address that `slowrank up` wrote to {no_key / 'url'}. "
        in left.stderr
    )
    assert "no API answers at http://127.0.0.1:2. " in given.stderr


def test_a_server_that_hangs_up_is_named(no_key):
    """Something listens there that does not speak HTTP."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        hang_up = threading.Thread(target=lambda: listener.accept()[0].close(), daemon=True)
        hang_up.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        result = CliRunner().invoke(app, ["findings", "list", "--url", url, "--key", "k"])
        hang_up.join()
    assert result.exit_code == 2
    assert f"{url} broke the connection off: " in result.stderr
    assert "Start `slowrank up` or" in result.stderr


def test_https_to_a_server_without_it_is_named(stranger, no_key):
    """Something answers there: whether it runs is not the question."""
    url, bodies = stranger
    bodies.append(b"{}")
    result = CliRunner().invoke(
        app, ["findings", "list", "--url", url.replace("http:", "https:"), "--key", "k"]
    )
    assert result.exit_code == 2
    assert "does it speak http:// only?" in result.stderr


@pytest.mark.parametrize(
    ("ids", "expected"),
    [([], "there is no webhook: add one"), (["whk_1", "whk_2"], "2 webhooks: name one of whk_1, whk_2")],
)
@pytest.mark.parametrize("command", ["test", "deliveries"])
def test_without_an_id_the_only_webhook_is_meant(stranger, no_key, command, ids, expected):
    """None differs from several, and the ids to choose from are there."""
    url, bodies = stranger
    bodies.append(json.dumps({"items": [{"id": one} for one in ids], "next_cursor": None}).encode())
    result = CliRunner().invoke(app, ["webhook", command, "--url", url, "--key", "k"])
    assert result.exit_code == 2
    assert expected in result.stderr


@pytest.mark.parametrize(
    ("answer", "printed", "kept"), [({"secret": "whsec_x"}, "secret whsec_x\n", True), ({}, "", False)]
)
def test_a_new_secret_is_printed_to_be_kept(stranger, no_key, answer, printed, kept):
    """Once, and alone on stdout; of one that the receiver issued only how long the old one is valid."""
    url, bodies = stranger
    bodies.append(json.dumps({"old_until": "2026-11-21T07:00:00Z"} | answer).encode())
    result = CliRunner().invoke(app, ["webhook", "rotate", "whk_1", "--url", url, "--key", "k"])
    assert (result.exit_code, result.stdout) == (0, printed)
    assert "The old secret is valid until 2026-11-21T07:00:00Z." in result.stderr
    assert ("Keep the secret: it is not shown again." in result.stderr) is kept
