"""A real mail server (aiosmtpd) on loopback, which hands every mail on before it answers."""

from __future__ import annotations

import email
import email.policy
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from typing import Any

from aiosmtpd.controller import Controller

from benchmarks.loopback import free_port

Take = Callable[[str, str, bytes], tuple[int, bytes] | None]


class _Handler:
    def __init__(self, take: Take) -> None:
        self._take = take

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        mail = email.message_from_bytes(envelope.content, policy=email.policy.default)
        answer = self._take("/email/mail", event_of(mail), shown(mail))
        # The mail was taken all the same, so that it comes twice.
        return "250 taken" if answer is not None and answer[0] < 500 else "451 try again later"


def event_of(mail: EmailMessage) -> str:
    """Return the id of the event in a mail's ``Message-ID``."""
    return str(mail["Message-ID"]).strip("<>").partition("@")[0]


def shown(mail: EmailMessage) -> bytes:
    """Return what a person reads of a mail, and its place in its thread, without its random boundaries."""
    text, html = mail.get_body(("plain",)), mail.get_body(("html",))
    assert text is not None
    assert html is not None
    read = {name: str(mail[name]) for name in ("Subject", "Date", "In-Reply-To") if mail[name] is not None}
    return json.dumps(read | {"text": text.get_content(), "html": html.get_content()}).encode()


@contextmanager
def serving_mail(take: Take) -> Iterator[int]:
    """Serve SMTP on a free loopback port, which is yielded; ``take`` is called as for a request over HTTP."""
    controller = Controller(_Handler(take), hostname="127.0.0.1", port=free_port())
    controller.start()
    try:
        yield controller.port
    finally:
        controller.stop()
