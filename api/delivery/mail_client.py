"""Hands one mail to the mail server of the settings, over TLS unless these allow otherwise."""

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import aiosmtplib
import msgspec

from api.delivery.mail_message import Mail, data_of, message_of, thread_after
from api.delivery.recipients import Recipients
from api.delivery.retry import Answer
from api.security.ssrf import Refused
from slowrank.settings import WEBHOOK_ATTEMPT_SECONDS
from store.findings.attempt_errors import NOT_SENT, REFUSED

log = logging.getLogger(__name__)

Security = Literal["starttls", "tls", "none"]
# Time to say goodbye, after the server has taken the mail.
_QUIT_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MailServer:
    """The server that takes mail, who logs in there, and the sender's address."""

    host: str
    port: int
    sender: str
    security: Security = "starttls"
    user: str | None = None
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class MailClient:
    """Sends mails, each over a connection of its own."""

    server: MailServer
    recipients: Recipients
    tls: ssl.SSLContext
    total_seconds: float = WEBHOOK_ATTEMPT_SECONDS

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, /) -> Answer:
        """Send the mail ``body`` to ``mailto:…``; never raises for errors of the server or the network.

        The status of an answer is the server's 250 where it took the mail, else None: every failure is
        tried again.
        """
        started, smtp = time.monotonic(), self._connection()
        try:
            mail = msgspec.json.decode(body, type=Mail)
            recipient = self.recipients.checked(url)
            data = data_of(message_of(mail, sender=self.server.sender, recipient=recipient))
            accepted = await self._hand_over(smtp, recipient, data)
        except Refused as refusal:
            log.warning("a mail was refused: %s", refusal.why)
            answer = Answer(error=f"{REFUSED}: {refusal}")
        except (aiosmtplib.SMTPException, OSError, ValueError) as error:
            failure = self._described(error)
            answer = Answer(error=failure if smtp.has_begun else f"{NOT_SENT}: {failure}")
        else:
            thread = msgspec.json.encode(thread_after(mail, self.server.sender)).decode()
            answer = Answer(status=250, excerpt=_printable(accepted), receipt=thread)
        return replace(answer, seconds=round(time.monotonic() - started, 3))

    def _connection(self) -> "_Connection":
        server = self.server
        return _Connection(
            hostname=server.host,
            port=server.port,
            # Without it the library asks the name service, and waits for that.
            local_hostname=socket.gethostname(),
            timeout=self.total_seconds,
            use_tls=server.security == "tls",
            # True, not None: a server that does not offer it gets nothing.
            start_tls=server.security == "starttls",
            tls_context=None if server.security == "none" else self.tls,
        )

    async def _hand_over(self, smtp: "_Connection", recipient: str, data: bytes) -> str:
        server, transport = self.server, None
        try:
            async with asyncio.timeout(self.total_seconds):
                await smtp.connect()
                transport = smtp.transport
                if server.user is not None:
                    await smtp.login(server.user, server.password or "")
                accepted = (await smtp.sendmail(server.sender, recipient, data))[1]
            with contextlib.suppress(aiosmtplib.SMTPException, OSError):
                await smtp.quit(timeout=_QUIT_SECONDS)
        finally:
            smtp.close()
            if isinstance(transport, asyncio.WriteTransport):
                # At once: the end of TLS waits up to 30 s for a server that is silent.
                transport.abort()
        return accepted

    def _described(self, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            return f"timeout: the mail server did not take it within {self.total_seconds:g} s"
        if isinstance(error, aiosmtplib.SMTPRecipientsRefused) and error.recipients:
            error = error.recipients[0]
        if isinstance(error, aiosmtplib.SMTPResponseException):
            return f"SMTP {error.code}: {_printable(error.message)}"
        return f"{type(error).__name__}: {_printable(str(error))}"


class _Connection(aiosmtplib.SMTP):
    """A connection that remembers whether it has begun to send a mail: before that a server has got nothing
    of it but who sends it to whom."""

    has_begun = False

    async def data(self, message: str | bytes, /, **options: Any) -> aiosmtplib.SMTPResponse:
        self.has_begun = True
        return await super().data(message, **options)


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text[:300])
