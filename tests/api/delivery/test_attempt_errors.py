"""What the senders write of attempts that reached nobody is known to the store, and nothing else is."""

import asyncio
import re
import socket
from dataclasses import replace

import aiosmtplib
import httpx
import pytest

from api.delivery.from_settings import mail_client_of
from api.delivery.webhook_client import WebhookClient, tls_context
from api.security.ssrf import Policy
from slowrank.settings import Settings
from store.findings.attempt_errors import NOT_BUILT, NOT_SENT, NOTHING_SENT
from tests.api.delivery.receivers.test_email import RECIPIENT, SENDER, rendered, run
from tests.api.delivery.receivers.test_receivers import example


@pytest.fixture
def closed():
    """A port on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def web(port, url):
    policy = Policy.of(allow_http=("127.0.0.1",), allow_private=("127.0.0.0/8",), extra_ports=(port,))
    return asyncio.run(WebhookClient(policy, tls_context()).post(url, {}, b"{}"))


def mail(port, recipient):
    made = mail_client_of(Settings(smtp_host="127.0.0.1", smtp_port=port, smtp_from=SENDER))
    assert made is not None
    return asyncio.run(made.post(f"mailto:{recipient}", {}, rendered(example())))


@pytest.mark.parametrize(
    "post",
    [
        lambda port: web(port, f"http://127.0.0.1:{port}/"),
        lambda port: web(port, f"http://10.0.0.1:{port}/"),
        lambda port: mail(port, RECIPIENT),
        lambda port: mail(port, "someone@elsewhere.test"),
    ],
    ids=["no receiver", "a forbidden address", "no mail server", "a forbidden recipient"],
)
def test_nothing_was_sent(closed, post):
    """The senders' own answers."""
    answer = post(closed)
    assert answer.status is None
    assert re.search(NOTHING_SENT, answer.error), answer.error


DIALOGUE = {
    "connection": b"220 here",
    "greeting": b"250 here",
    "sender": b"250 ok",
    "recipient": b"250 ok",
    "announcement": b"354 go on",
    "mail": b"250 taken",
}


async def talk(step, failure):
    """Post a mail to a server that at one step refuses, hangs up or falls silent."""

    async def serve(reader, writer):
        for at, reply in DIALOGUE.items():
            if at != "connection":
                await reader.readuntil(b"\r\n.\r\n" if at == "mail" else b"\r\n")
            if at == step:
                break
            writer.write(reply + b"\r\n")
        if failure == "refuses":
            writer.write(b"451 not now\r\n")
        elif failure == "falls silent":
            await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        settings = Settings(smtp_host="127.0.0.1", smtp_port=port, smtp_from=SENDER, smtp_security="none")
        made = mail_client_of(settings)
        assert made is not None
        client = replace(made, total_seconds=0.3)
        return await client.post(f"mailto:{RECIPIENT}", {}, rendered(example()))


@pytest.mark.parametrize("failure", ["refuses", "hangs up", "falls silent"])
@pytest.mark.parametrize("step", DIALOGUE)
def test_a_mail_may_have_arrived_once_it_was_announced(step, failure):
    """Before that, its server has certainly got nothing of it, whatever went wrong."""
    answer = run(talk(step, failure))
    assert answer.status is None
    nothing = step not in ("announcement", "mail")
    assert bool(re.search(NOTHING_SENT, answer.error)) is nothing, answer.error


@pytest.mark.parametrize(
    ("begins", "nothing"),
    [
        (NOT_BUILT, True),
        (NOT_SENT, True),
        (httpx.ConnectError.__name__, True),
        (httpx.ConnectTimeout.__name__, True),
        (httpx.ReadTimeout.__name__, False),
        (httpx.RemoteProtocolError.__name__, False),
        (ConnectionResetError.__name__, False),
        (aiosmtplib.SMTPServerDisconnected.__name__, False),
        ("timeout", False),
        ("SMTP 451", False),
    ],
)
def test_what_is_known_of_an_attempt(begins, nothing):
    """A lost connection and a time-out tell nothing."""
    assert bool(re.search(NOTHING_SENT, f"{begins}: why")) is nothing
