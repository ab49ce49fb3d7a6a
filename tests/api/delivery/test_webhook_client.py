"""One request on the wire goes to the checked address, under the checked name, within bounds."""

import asyncio
import socket
import ssl
import threading

from api.delivery.webhook_client import MAX_READ, WebhookClient, tls_context
from api.security.ssrf import Policy

LOOPBACK = ["127.0.0.0/8"]


def sender(
    *ports,
    resolve=None,
    tls=None,
    total_seconds=5.0,
    private=LOOPBACK,
    http=("127.0.0.1", "hooks.example.test"),
):
    policy = Policy.of(allow_http=http, allow_private=private, extra_ports=ports)
    options = {} if resolve is None else {"resolve": resolve}
    return WebhookClient(policy, tls or tls_context(), total_seconds=total_seconds, **options)


def post(sender, url, body=b"{}"):
    return asyncio.run(sender.post(url, {"content-type": "application/json", "webhook-id": "msg_1"}, body))


class Names:
    """A resolver that gives the same addresses for every name and remembers who was asked for."""

    def __init__(self, *addresses):
        self.addresses = addresses
        self.calls = []

    async def __call__(self, host, port):
        self.calls.append(host)
        return self.addresses


def test_a_request_arrives_whole(receiver):
    """Path, query, headers and body are those that were given; the answer comes back."""
    receiver.answers = [(202, {}, b"thanks\x1b[31m")]
    answer = post(sender(receiver.port), receiver.url + "?a=1", b'{"x":1}')

    (got,) = receiver.got
    assert (answer.status, answer.excerpt) == (202, "thanks [31m")
    assert (got.path, got.body, got.headers["webhook-id"]) == ("/hook?a=1", b'{"x":1}', "msg_1")
    assert got.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert "cookie" not in got.headers


def test_the_name_is_resolved_once_and_kept_as_host(receiver):
    """A rebinding name cannot change its mind: there is one resolution, and its address is used."""
    resolve = Names("127.0.0.1")
    answer = post(sender(receiver.port, resolve=resolve), f"http://hooks.example.test:{receiver.port}/hook")

    assert answer.status == 200
    assert resolve.calls == ["hooks.example.test"]
    assert receiver.got[0].headers["host"] == f"hooks.example.test:{receiver.port}"


def test_a_name_that_resolves_inside_is_refused_without_a_byte(receiver, caplog):
    """Nothing is sent to an address the policy forbids; the log has the reason, the answer hides the
    address."""
    strict = sender(receiver.port, resolve=Names("127.0.0.1"), private=[])
    answer = post(strict, f"http://hooks.example.test:{receiver.port}/hook")

    assert answer.status is None
    assert answer.error.startswith("refused: hooks.example.test has no address that a webhook may reach")
    assert "127.0.0.1" not in answer.error
    assert "private address 127.0.0.1" in caplog.text
    assert receiver.got == []


def test_the_next_checked_address_is_tried(receiver):
    """When the first address does not accept, the next of the same resolution is used."""
    answer = post(
        sender(receiver.port, resolve=Names("127.0.0.9", "127.0.0.1")),
        f"http://hooks.example.test:{receiver.port}/hook",
    )
    assert answer.status == 200


def test_tls_is_verified_against_the_name_not_the_address(start_receiver, tls_server_context, certificate):
    """SNI and certificate check use the host of the URL although the connection goes to an address."""
    asked = []
    tls_server_context.sni_callback = lambda sock, name, context: asked.append(name)
    receiver = start_receiver(tls_server_context)
    trusting = ssl.create_default_context(cafile=str(certificate) + ".crt")
    resolve = Names("127.0.0.1")

    good = post(
        sender(receiver.port, resolve=resolve, tls=trusting), f"https://hooks.example.test:{receiver.port}/"
    )
    assert good.status == 200
    assert asked == ["hooks.example.test"]

    for url, tls in (("https://other.example.test", trusting), ("https://hooks.example.test", tls_context())):
        bad = post(sender(receiver.port, resolve=resolve, tls=tls), f"{url}:{receiver.port}/")
        assert bad.status is None
        assert "CERTIFICATE_VERIFY_FAILED" in bad.error
    assert len(receiver.got) == 1


def test_redirects_are_not_followed(start_receiver):
    """A redirect is the receiver's answer, not a new destination."""
    inner = start_receiver()
    outer = start_receiver(answers=[(307, {"location": inner.url}, b"")])
    answer = post(sender(outer.port, inner.port), outer.url)

    assert answer.status == 307
    assert inner.got == []


def test_proxy_variables_are_ignored(receiver, monkeypatch):
    """HTTP_PROXY in the environment cannot divert a delivery."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert post(sender(receiver.port), receiver.url).status == 200


def test_reading_stops_at_64_kb(start_receiver):
    """An endless answer is not read to its end."""
    receiver = start_receiver(answers=[(200, {}, b"x" * (50 * MAX_READ))])
    answer = post(sender(receiver.port), receiver.url)
    assert answer.status == 200
    assert answer.seconds < 2
    assert len(answer.excerpt) == 500


def test_retry_after_is_reported(start_receiver):
    """The answer carries the seconds a throttling receiver asks for."""
    receiver = start_receiver(answers=[(429, {"retry-after": "17"}, b"")])
    assert post(sender(receiver.port), receiver.url).retry_after_seconds == 17.0


def test_a_dripping_answer_ends_at_the_total_time():
    """A receiver that sends a byte now and then cannot hold a delivery longer than the total timeout."""
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]
    done = threading.Event()

    def drip():
        connection, _ = server.accept()
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        while not done.wait(0.1):
            try:
                connection.sendall(b"x-a: b\r\n")
            except OSError:
                break
        connection.close()

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    answer = post(sender(port, total_seconds=0.7), f"http://127.0.0.1:{port}/")
    done.set()
    thread.join(5)
    server.close()
    assert answer.error.startswith("timeout")
    assert answer.seconds < 2


def test_a_refused_connection_is_an_answer_too():
    """A closed port is an error text, not an exception."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    answer = post(sender(port), f"http://127.0.0.1:{port}/")
    assert answer.status is None
    assert "ConnectError" in answer.error
