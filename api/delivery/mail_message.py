"""Makes a mail of what ``receivers.email`` renders. Pure: no socket, no clock."""

from datetime import datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime

import msgspec

from api.delivery.receivers.email import Thread


class Mail(msgspec.Struct, frozen=True):
    """A mail as its receiver renders it; ``thread`` is the first mail of its finding, None for that one."""

    id: str
    at: datetime
    subject: str
    text: str
    html: str
    plot: str = ""
    thread: Thread | None = None
    urgent: bool = False


def message_of(mail: Mail, *, sender: str, recipient: str) -> EmailMessage:
    """Return the message: plain text, the same as HTML, the plots as an attachment.

    It is the same for the same mail, with the same ``Message-ID``, so that a mail server or program which
    gets it twice can drop one. Raises ``ValueError`` where a header would have more than one line.
    """
    message = EmailMessage(policy=SMTP)
    message["From"], message["To"] = f"slowrank <{sender}>", recipient
    message["Subject"] = mail.subject if mail.thread is None else f"Re: {mail.thread.subject}"
    message["Date"] = format_datetime(mail.at)
    message["Message-ID"] = message_id(mail.id, sender)
    if mail.thread is not None:
        message["In-Reply-To"] = message["References"] = mail.thread.id
    # RFC 3834: no answer by a machine, such as that somebody is on holiday.
    message["Auto-Submitted"] = "auto-generated"
    if mail.urgent:
        message["Importance"] = "high"
    # Quoted-printable: 7 bits and short lines, which every server takes.
    message.set_content(mail.text, cte="quoted-printable")
    message.add_alternative(mail.html, subtype="html", cte="quoted-printable")
    if mail.plot:
        message.add_attachment(
            mail.plot.encode(), maintype="image", subtype="svg+xml", filename="finding.svg"
        )
    return message


def data_of(message: EmailMessage) -> bytes:
    """Return the message as it is sent."""
    # The library would begin an ASCII subject of 70 to 78 characters on the second line of its header, from
    # where it is read with a blank in front: it is not folded, up to the limit of RFC 5322. Others become
    # encoded words, at most 75 characters long (RFC 2047), one on a line.
    longest = 998 if str(message["Subject"]).isascii() else 76
    return message.as_bytes(policy=SMTP.clone(max_line_length=longest))


def thread_after(mail: Mail, sender: str) -> Thread:
    """Return the thread that the next mail of the finding belongs to."""
    return mail.thread or Thread(message_id(mail.id, sender), mail.subject)


def message_id(event_id: str, sender: str) -> str:
    """Return the ``Message-ID`` of the mail about an event."""
    return f"<{event_id}@{sender.rpartition('@')[2]}>"
