"""No client can hold the API: a real server, real sockets on loopback, few file descriptors."""

import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress

import httpx
import pytest

from api.app import create_app
from api.http.client_address import canonical, client_address, networks
from api.http.connections import ConnectionLimits, server

HALF_OPEN = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "
FILES = 256


@contextmanager
def connected(port, count, data=b""):
    """Yield ``count`` sockets to the port that have sent ``data``."""
    with ExitStack() as held:
        sockets = []
        for _ in range(count):
            sockets.append(held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10)))
            sockets[-1].sendall(data)
        yield sockets


def is_ended(connection, seconds):
    """Return whether the server ends a connection within so many seconds."""
    connection.settimeout(seconds)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


def drips_until_ended(connection, data, seconds):
    """Send ``data`` ten times a second; return whether the server ends the connection within ``seconds``."""
    connection.settimeout(0.1)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            connection.sendall(data)
        except TimeoutError:
            continue
        except ConnectionError:
            return True
        time.sleep(0.1)
    return False


def healthy(port, seconds=5.0):
    """Ask /healthz on a connection of its own."""
    with httpx.Client(timeout=seconds) as client:
        return client.get(f"http://127.0.0.1:{port}/healthz").status_code == 200


@pytest.fixture
def bounded(settings, pool, monkeypatch):
    """Start servers with limits of the test's own: ``bounded(head_seconds=1.0)`` returns the port."""
    stops = []

    def start(**limits):
        monkeypatch.setattr(
            ConnectionLimits, "of", lambda *_: ConnectionLimits(**({"total": 64, "per_address": 48} | limits))
        )
        app = create_app(settings, pool)
        serving = server(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
        listening = socket.create_server(("127.0.0.1", 0))
        thread = threading.Thread(target=serving.run, kwargs={"sockets": [listening]})
        thread.start()
        stops.append((serving, thread, listening))
        return listening.getsockname()[1]

    yield start
    for serving, thread, listening in stops:
        serving.should_exit = True
        thread.join(20)
        assert not thread.is_alive()
        listening.close()


COMMANDS = {
    "api run": ["api", "run", "--port", "0"],
    "up": ["up", "--port", "0", "--listen", "127.0.0.1:0"],
}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_half_open_requests_do_not_shut_others_out(command, api_dsn, tmp_path):
    """With 256 file descriptors and 400 connections that never send a request, /healthz answers."""
    environment = {n: v for n, v in os.environ.items() if not n.startswith("SLOWRANK_")} | {
        "SLOWRANK_DATABASE_URL": api_dsn,
        "SLOWRANK_KAFKA_BOOTSTRAP": "127.0.0.1:1",
        "XDG_CONFIG_HOME": str(tmp_path),
    }
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", "from cli import main; main()", *COMMANDS[command]],
            env=environment,
            cwd=tmp_path,
            stdout=log,
            stderr=log,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES)),
        )
    try:
        port = _port_of(process, tmp_path / "log")
        with connected(port, 200, HALF_OPEN):
            assert healthy(port)
            with connected(port, 200, HALF_OPEN):
                assert healthy(port)
    finally:
        process.terminate()
        process.wait(30)
    assert "Too many open files" not in (tmp_path / "log").read_text()


def _port_of(process, log):
    """Return the port that a starting process listens on."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        for line in log.read_text().splitlines():
            _, found, rest = line.partition("http://127.0.0.1:")
            if found:
                return int("".join(c for c in rest.split()[0] if c.isdigit()))
        time.sleep(0.1)
    raise AssertionError(log.read_text())


@pytest.mark.slow
def test_a_request_that_does_not_arrive_is_ended(bounded):
    """Silence, half a head, a head a byte at a time, and the same after an answer: each ends in time."""
    port = bounded(head_seconds=1.0)
    whole = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with connected(port, 1) as (silent,), connected(port, 1, HALF_OPEN) as (half,):
        with connected(port, 1, whole + HALF_OPEN) as (second,):
            assert second.recv(4096).startswith(b"HTTP/1.1 200")
            assert drips_until_ended(half, b"x", 5.0)
            assert drips_until_ended(second, b"x", 5.0)
        assert is_ended(silent, 4.0)


@pytest.mark.parametrize("path", ["/v1/metrics", "/sign-in"])
def test_a_client_that_leaves_within_its_body_is_no_error(bounded, new_token, caplog, path):
    """Neither in the log nor in the metrics, by which errors of slowrank are alerted."""
    port, key = bounded(), new_token("telemetry:write", "metrics:read")
    authorization = f"Content-Type: application/x-protobuf\r\nAuthorization: Bearer {key}"
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{authorization}\r\nContent-Length: 60000\r\n\r\n{{"
    with connected(port, 1, head.encode()):
        time.sleep(0.5)
    deadline = time.monotonic() + 10
    counted: list[str] = []
    while not counted:
        assert time.monotonic() < deadline
        read = httpx.get(f"http://127.0.0.1:{port}/metrics", headers={"authorization": f"Bearer {key}"})
        lines = read.text.splitlines()
        counted = [line for line in lines if "request_seconds_count" in line and f'route="{path}"' in line]
    assert 'status="4xx"' in counted[0]
    assert not [entry for entry in caplog.records if entry.levelname == "ERROR"]


@pytest.mark.slow
def test_a_body_that_no_route_reads_is_ended(bounded):
    """A request that was refused may not go on sending its body for ever."""
    port = bounded(body_seconds=1.0)
    head = b"POST /nowhere HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 60000\r\n\r\n{"
    with connected(port, 1, head) as (slow,):
        slow.settimeout(5)
        assert slow.recv(4096).startswith(b"HTTP/1.1 404")
        assert drips_until_ended(slow, b"x", 5.0)


@pytest.mark.slow
def test_an_answer_that_is_not_read_is_ended(bounded, new_token):
    """A client that asks for more than the kernel buffers, and never reads, loses its connection."""
    port = bounded(sending_seconds=1.0)
    bearer = f"Authorization: Bearer {new_token('findings:read')}\r\n"
    request = f"GET /api/v1/openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n{bearer}\r\n".encode()
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        deaf.connect(("127.0.0.1", port))
        # 55 answers of 90 kB, within the key's burst; the kernel takes 4 MB at most (tcp_wmem).
        deaf.sendall(request * 55)
        assert drips_until_ended(deaf, b"G", 40.0)
    assert healthy(port)


def test_the_oldest_without_a_request_makes_room(bounded):
    """Beyond what one address may have, its oldest half-open connection goes, and a served one stays."""
    port = bounded(per_address=8, head_seconds=60.0)
    stream = b"POST /api/v1/keys HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10\r\n\r\n{"
    with connected(port, 1, stream) as (sending,), connected(port, 7, HALF_OPEN) as half:
        time.sleep(0.2)
        with connected(port, 1) as (newest,):
            assert is_ended(half[0], 5.0)
            assert not is_ended(half[1], 0.2)
            assert not is_ended(sending, 0.2)
            newest.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert newest.recv(100).startswith(b"HTTP/1.1 200")


def test_limits_leave_descriptors_to_the_rest():
    """Half of 1,024 descriptors go to connections, a quarter where there are few, never more than wanted."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        got = {}
        for files in (256, 1024, hard):
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
            got[files] = ConnectionLimits.of(512).total
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert got == {256: 64, 1024: 512, hard: 512}
    assert ConnectionLimits.of(512).per_address == 256


PROXIES = networks(["10.0.0.0/8", "2001:db8::1", "127.0.0.1"])


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("192.0.2.7", ["203.0.113.1"], "192.0.2.7"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.1"], "203.0.113.1"),
        ("10.0.0.1", ["1.1.1.1, 203.0.113.1"], "203.0.113.1"),
        ("10.0.0.1", ["1.1.1.1", "203.0.113.1, 10.9.9.9"], "203.0.113.1"),
        ("10.0.0.1", ["10.1.1.1, 10.2.2.2"], "10.1.1.1"),
        ("::ffff:10.0.0.1", ["::ffff:203.0.113.1"], "203.0.113.1"),
        ("2001:db8::1", ["2001:DB8:0::9"], "2001:db8::9"),
        ("10.0.0.1", ["<script>"], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.1, evil\r\nx: y"], "10.0.0.1"),
        ("10.0.0.1", ["evil, 10.3.3.3"], "10.3.3.3"),
        ("10.0.0.1", ["203.0.113.1:4711"], "10.0.0.1"),
        ("10.0.0.1", [""], "10.0.0.1"),
        ("", ["203.0.113.1"], ""),
    ],
)
def test_only_proxies_that_are_named_are_believed(peer, forwarded, client):
    """From the right, as far as the proxies are trusted; what is no address is not taken."""
    assert client_address(peer, forwarded, PROXIES) == client


def test_an_address_has_one_form():
    """A zone and an IPv4 address inside IPv6 are taken off."""
    assert [canonical(t) for t in ("fe80::1%eth0", "::FFFF:1.2.3.4", " 1.2.3.4 ", "a")] == [
        "fe80::1",
        "1.2.3.4",
        "1.2.3.4",
        "",
    ]


def test_a_body_that_turns_bad_after_the_answer_ends_the_connection(bounded, caplog):
    """Content-Length is too much and answered at once; the chunk that follows is malformed."""
    head = b"POST /api/v1/silences HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n"
    with connected(bounded(), 1, head + b"Content-Length: 999999999\r\n\r\n") as (connection,):
        assert connection.recv(12) == b"HTTP/1.1 413"
        connection.sendall(b"no chunk\r\n")
        connection.settimeout(5)
        with suppress(ConnectionResetError):
            while connection.recv(4096):
                pass
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(("trusted", "address"), [((), "127.0.0.1"), (("127.0.0.0/8",), "203.0.113.9")])
def test_the_audit_log_has_the_client_that_can_be_believed(bounded, settings, new_token, trusted, address):
    """Over a real connection from loopback: the header counts where the settings name loopback a proxy."""
    settings.api_trusted_proxies = trusted
    port = bounded()
    headers = {
        "authorization": f"Bearer {new_token('keys:admin', 'findings:read')}",
        "x-forwarded-for": "1.1.1.1, 203.0.113.9",
        "forwarded": "for=9.9.9.9;host=evil;proto=https",
        "x-forwarded-proto": "https",
        "x-forwarded-host": "evil.example.net",
    }
    url = f"http://127.0.0.1:{port}/api/v1"
    made = httpx.post(f"{url}/keys", headers=headers, json={"name": "k", "scopes": ["findings:read"]})
    assert made.status_code == 201, made.text
    (entry,) = httpx.get(f"{url}/audit", headers=headers).json()["items"]
    assert entry["detail"]["ip"] == address
    assert "evil" not in json.dumps(entry)
