"""A real SMTP server on a free loopback port (aiosmtpd), with or without TLS and passwords."""

import email
import email.policy
from dataclasses import dataclass, field
from email.message import EmailMessage

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult
from servers.process import free_ports

USER, PASSWORD = "slowrank", "p:ss wörd"


@dataclass
class Mailbox:
    """What the server took, and the answer it gives: to a recipient, or to the mail itself."""

    mails: list[EmailMessage] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)
    envelopes: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    encrypted: list[bool] = field(default_factory=list)
    at_recipient: str = "250 OK"
    at_data: str = "250 taken as 1"

    async def handle_RCPT(self, server, session, envelope, address, rcpt_options):
        if self.at_recipient.startswith("250"):
            envelope.rcpt_tos.append(address)
        return self.at_recipient

    async def handle_DATA(self, server, session, envelope):
        if not self.at_data.startswith("250"):
            return self.at_data
        self.raw.append(envelope.content)
        self.mails.append(email.message_from_bytes(envelope.content, policy=email.policy.default))
        self.envelopes.append((envelope.mail_from, tuple(envelope.rcpt_tos)))
        self.encrypted.append(server.transport.get_extra_info("ssl_object") is not None)
        return self.at_data


def _login(server, session, envelope, mechanism, data):
    given = (data.login.decode(), data.password.decode())
    # Not handled: the server itself is to answer 535.
    return AuthResult(success=given == (USER, PASSWORD), handled=False)


def controller(mailbox, *, starttls=None, tls=None, with_login=False):
    """Return a server that is not started; ``starttls`` and ``tls`` are contexts."""
    options = {"tls_context": starttls, "require_starttls": starttls is not None, "ssl_context": tls}
    if with_login:
        options |= {"authenticator": _login, "auth_required": True}
    (port,) = free_ports(1)
    return Controller(mailbox, hostname="127.0.0.1", port=port, **options)
