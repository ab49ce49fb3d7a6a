"""E-mail: what a mail has, hostile strings in it, and the thread of a finding at a real mail server."""

import asyncio
import contextlib
import email
import email.policy
import json
import os
import socket
import threading
from dataclasses import replace
from datetime import UTC, datetime

import msgspec
import psycopg
import pytest
from servers.exim import PASSWORD as EXIM_PASSWORD
from servers.exim import Exim
from servers.process import wait_until

from alerts.config import FindingConfig
from alerts.finding import Action
from api.app import create_app
from api.delivery.from_settings import mail_client_of, recipients_of, webhook_client_of
from api.delivery.mail_client import MailClient
from api.delivery.mail_message import Mail, data_of, message_of
from api.delivery.notifier import Notifier
from api.delivery.receivers.email import Thread
from api.delivery.receivers.receiver import Notification
from api.delivery.receivers.registry import receiver_named
from api.metrics import NotifierMetrics, new_registry
from api.security.ssrf import Refused
from slowrank.settings import Settings
from store.findings import findings
from store.pool import open_pool
from tests.api.delivery.receivers.mail_server import PASSWORD, USER, Mailbox, controller
from tests.api.delivery.receivers.test_receivers import FINDINGS, HOSTILE, example
from tests.conftest import running

LINK = "https://slowrank.example.org/findings/fnd_1?t=1.2"
SENDER, RECIPIENT = "slowrank@example.org", "oncall@example.org"
AT = datetime(2026, 11, 20, 7, 34, 2, tzinfo=UTC)


def rendered(finding, happened="finding.opened", **fields):
    notification = Notification("msg_01", happened, AT, finding, LINK, **fields)
    return receiver_named("email").body(notification, "https://slowrank.example.org")


def parsed(body):
    mail = msgspec.json.decode(body, type=Mail)
    data = data_of(message_of(mail, sender=SENDER, recipient=RECIPIENT))
    return email.message_from_bytes(data, policy=email.policy.default), data


def content(message, kind):
    return message.get_body((kind,)).get_content()


def test_a_mail_carries_what_the_person_on_call_needs():
    """Severity, title, onset, cost, cause, what to do and the link, as text and as HTML."""
    finding = example(action=Action("DRAIN_NODE", "Drain gpu-0423.", ("scontrol update nodename=gpu-0423",)))
    message, data = parsed(rendered(finding))
    assert message["subject"] == f"[slowrank] {finding['title']}"
    assert (message["from"], message["to"]) == ("slowrank <slowrank@example.org>", RECIPIENT)
    assert (message["message-id"], message["importance"]) == ("<msg_01@example.org>", "high")
    assert message["date"].datetime == AT
    assert message["references"] is None
    text, html = content(message, "plain"), content(message, "html")
    assert text.splitlines()[:2] == ["CRITICAL", finding["title"]]
    for shown in (
        "969.3 GPU-h per hour",
        "throttle.thermal (93 %)",
        "scontrol update nodename=gpu-0423",
        LINK,
    ):
        assert shown in text
    assert f'<a href="{LINK}">' in html
    assert max(map(len, data.splitlines())) <= 998
    assert data.isascii()


def test_plots_are_attached_and_left_out_where_too_large():
    """SVG as a file, as mail programs do not show it inline."""
    svg = '<svg xmlns="http://www.w3.org/2000/svg"><title>ü</title></svg>'
    [attached] = parsed(rendered(example(), plot=svg))[0].iter_attachments()
    assert (attached.get_content_type(), attached.get_filename()) == ("image/svg+xml", "finding.svg")
    assert attached.get_content().decode() == svg
    assert list(parsed(rendered(example(), plot=svg * 10_000))[0].iter_attachments()) == []


@pytest.mark.parametrize(
    ("finding", "happened", "heading"),
    [
        (example(severity="error"), "finding.escalated", "Escalated: ERROR"),
        (example(), "finding.reopened", "Back again: CRITICAL"),
        (example(status="resolved", resolved_at=1795161000.0), "finding.resolved", "Resolved"),
        (example(status="expired", resolved_at=1795161000.0), "finding.resolved", "Expired"),
        (example(), "finding.of_a_later_release", "CRITICAL"),
    ],
)
def test_the_first_line_is_the_state(finding, happened, heading):
    """A later mail keeps the subject and refers to the first one; what is over asks for nothing."""
    receipt = json.dumps({"id": "<msg_00@example.org>", "subject": "[slowrank] as it began"})
    message, _ = parsed(rendered(finding, happened, receipt=receipt))
    assert message["subject"] == "Re: [slowrank] as it began"
    assert message["references"] == message["in-reply-to"] == "<msg_00@example.org>"
    text = content(message, "plain")
    assert text.splitlines()[0] == heading
    ended = finding["status"] != "open"
    assert ("Until: 2026-11-20T" in text, "Do: " in text) == (ended, not ended)


@pytest.mark.parametrize("length", range(40, 170, 5))
@pytest.mark.parametrize("letter", ["x", "ü", "x "])
def test_a_subject_of_any_length_is_read_as_written(length, letter):
    """Without a blank in front, however the header is folded; encoded words have at most 75 characters."""
    title = (letter * length)[:length].strip()
    message, data = parsed(rendered(example(title=title)))
    assert message["subject"] == f"[slowrank] {title[:160].strip()}"
    subject = next(part for part in data.split(b"\r\n") if part.startswith(b"Subject:"))
    assert len(subject) > len("Subject: ")
    assert all(len(word) <= 75 for word in data.split(b"\r\n\r\n")[0].split() if word.startswith(b"=?"))


HEADERS = {
    *("From", "To", "Subject", "Date", "Message-ID", "Auto-Submitted", "Importance", "MIME-Version"),
    *("Content-Type", "In-Reply-To", "References"),
}


@pytest.mark.parametrize("which", FINDINGS)
@pytest.mark.parametrize(
    "inserted",
    [
        "\r\nBcc: evil@example.net",
        "\nX-Evil: 1\n\nbody",
        "\rSubject: 2",
        "\u2028\x0b\x0c\x85\x00",
        HOSTILE,
        "=?utf-8?q?=0D=0ABcc:x?=",
    ],
)
def test_no_text_makes_a_header_or_markup(which, inserted):
    """Whatever a title, place, command or action has: the headers are ours, and HTML shows it as text."""
    finding = FINDINGS[which] | {"title": inserted + "<script>" + inserted, "severity": inserted}
    finding["action"] = {"code": "WATCH", "text": inserted, "commands": [inserted] * 9}
    receipt = json.dumps({"id": "<msg_00@example.org>", "subject": "[slowrank] first"})
    for body in (rendered(finding), rendered(finding, receipt=receipt)):
        message, data = parsed(body)
        assert set(message.keys()) <= HEADERS
        assert message.get_all("to") == [RECIPIENT]
        assert [p.get_content_type() for p in message.walk()] == [
            "multipart/alternative",
            "text/plain",
            "text/html",
        ]
        assert "<script" not in content(message, "html")
        assert len(data) < 120_000


@pytest.mark.parametrize("subject", ["a\r\nBcc: x@example.net", "a\nb"])
def test_a_stored_thread_cannot_inject_either(subject):
    """A receipt with line ends, which nothing writes, gives no mail instead of one with another header."""
    mail = Mail("m", AT, "s", "t", "h", thread=Thread("<a@b>", subject))
    with pytest.raises(ValueError, match="may not contain linefeed"):
        message_of(mail, sender=SENDER, recipient=RECIPIENT)


@pytest.fixture
def start_mail(certificate, tls_server_context):
    """Start servers: ``start_mail("starttls", with_login=True)`` returns (mailbox, settings of a client)."""
    running = []

    def start(security="starttls", **options):
        mailbox = Mailbox()
        contexts = {security: tls_server_context} if security != "none" else {}
        server = controller(mailbox, **contexts, **options)
        server.start()
        running.append(server)
        fields = {"smtp_host": "localhost", "smtp_port": server.port, "smtp_security": security}
        authority = certificate.with_suffix(".pem.crt")
        return mailbox, fields | {"smtp_from": SENDER, "webhook_ca_file": authority}

    yield start
    for server in running:
        server.stop()


def run(work):
    """Run a coroutine in a loop of its own, which ends after the connections are closed on both sides."""

    async def whole():
        done = await work
        await asyncio.sleep(0.1)
        return done

    return asyncio.run(whole())


def send(fields, url=f"mailto:{RECIPIENT}", body=None, **changes):
    client = mail_client_of(Settings(**(fields | changes)))
    assert client is not None
    return run(client.post(url, {}, body or rendered(example())))


@pytest.mark.parametrize("security", ["starttls", "tls", "none"])
def test_a_mail_is_taken(start_mail, security):
    """By STARTTLS, by TLS from the first byte, and in the clear where the settings ask for that."""
    mailbox, fields = start_mail(security)
    answer = send(fields)
    assert (answer.status, answer.error, answer.excerpt) == (250, "", "taken as 1")
    assert json.loads(answer.receipt) == {
        "id": "<msg_01@example.org>",
        "subject": f"[slowrank] {example()['title']}",
    }
    assert mailbox.envelopes == [(SENDER, (RECIPIENT,))]
    assert mailbox.encrypted == [security != "none"]


def test_it_logs_in_with_the_password_of_a_file(start_mail, tmp_path):
    """A wrong password is an error that does not show it."""
    mailbox, fields = start_mail(with_login=True)
    (tmp_path / "password").write_text(PASSWORD + "\n")
    login = {"smtp_user": USER, "smtp_password_file": tmp_path / "password"}
    assert send(fields | login).status == 250
    assert "SMTP 530" in send(fields).error
    (tmp_path / "password").write_text("wrong secret")
    wrong = send(fields | login)
    assert wrong.status is None
    assert wrong.error.startswith("not sent: SMTP 535")
    assert "secret" not in wrong.error
    assert len(mailbox.mails) == 1


def test_without_encryption_nothing_is_sent(start_mail):
    """A server that offers no STARTTLS, or has another name in its certificate, gets no mail."""
    plain, fields = start_mail("none")
    errors = [send(fields, smtp_security="starttls").error]
    other, fields = start_mail("starttls")
    errors += [send(fields, smtp_host="127.0.0.1").error, send(fields, webhook_ca_file=None).error]
    for error, why in zip(errors, ("starttls", "certificate", "certificate"), strict=True):
        assert error.startswith("not sent: ")
        assert why in error.lower()
    assert plain.mails == other.mails == []


@pytest.mark.parametrize(("where", "begins"), [("at_recipient", "not sent: "), ("at_data", "")])
@pytest.mark.parametrize("reply", ["550 no such user\x1b[31m", "451 later", "410 gone"])
def test_a_refusal_is_an_error_to_be_tried_again(start_mail, where, begins, reply):
    """With the server's code and text; no code has the meaning of an HTTP status."""
    mailbox, fields = start_mail()
    setattr(mailbox, where, reply)
    answer = send(fields)
    assert answer.status is None
    assert answer.error == f"{begins}SMTP {reply[:3]}: {reply[4:]}".replace("\x1b", " ")
    assert mailbox.mails == []


def test_a_server_that_does_not_answer_takes_no_longer_than_an_attempt():
    """Bytes that drip in do not lengthen it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip():
            connection, _ = listening.accept()
            with connection, contextlib.suppress(OSError):
                stop.wait(0.2)
                while not stop.wait(0.05):
                    connection.sendall(b"2")

        stop = threading.Event()
        thread = threading.Thread(target=drip)
        thread.start()
        fields = {"smtp_host": "127.0.0.1", "smtp_port": listening.getsockname()[1], "smtp_from": SENDER}
        made = mail_client_of(Settings(**fields))
        assert made is not None
        client = MailClient(made.server, made.recipients, made.tls, total_seconds=0.5)
        answer = run(client.post(f"mailto:{RECIPIENT}", {}, rendered(example())))
        stop.set()
        thread.join()
    assert answer.error == "not sent: timeout: the mail server did not take it within 0.5 s"
    assert answer.seconds < 2


@pytest.mark.parametrize(
    ("allowed", "url", "taken"),
    [
        ((), "mailto:oncall@example.org", True),
        ((), "mailto:oncall@EXAMPLE.org", True),
        ((), "mailto:oncall@other.example.org", False),
        ((), "mailto:oncall@example.net", False),
        (("example.net",), "mailto:a@example.net", True),
        (("example.net",), "mailto:a@example.org", False),
        (("a@example.net", "@example.com"), "mailto:A@example.net", True),
        (("a@example.net", "@example.com"), "mailto:b@example.net", False),
        (("a@example.net", "@example.com"), "mailto:b@example.com", True),
        ((), "mailto:a@example.net,b@example.org", False),
        ((), "mailto:a@example.org?bcc=b@example.net", False),
        ((), "mailto:a%0d%0a@example.org", False),
        ((), "mailto:a@example.org\n", False),
        ((), "mailto:a@example.net\r\nRCPT TO:<b@example.org", False),
        ((), 'mailto:"a b"@example.org', False),
        ((), "mailto:@example.net:a@example.org", False),
        ((), "mailto:-oQ/tmp@example.org", False),
        ((), "mailto:|sh@example.org", False),
        ((), "mailto:ü@example.org", False),
        ((), f"mailto:{'a' * 65}@example.org", False),
        ((), "oncall@example.org", False),
        ((), "https://example.org/", False),
    ],
)
def test_who_may_get_mail(allowed, url, taken):
    """One plain address, listed itself or by its domain; none listed: the sender's domain."""
    recipients = recipients_of(Settings(smtp_host="mail", smtp_from=SENDER, smtp_recipients=allowed))
    assert recipients is not None
    if taken:
        assert recipients.checked(url) == url.removeprefix("mailto:")
    else:
        with pytest.raises(Refused):
            recipients.checked(url)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"smtp_host": "mail"}, "needs smtp_from"),
        ({"smtp_user": "u"}, "needs smtp_password"),
        ({"smtp_password": "p"}, "they need smtp_user"),
        ({"smtp_user": "u", "smtp_password": "p", "smtp_security": "none"}, "over TLS only"),
        ({"smtp_from": "a@b\r\nBcc: c@d"}, "smtp_from"),
        ({"smtp_host": "mail -oQ"}, "smtp_host"),
        ({"smtp_recipients": ("*",)}, "smtp_recipients"),
    ],
)
def test_settings_that_do_not_fit_are_refused(fields, message):
    """At the start of a process, with what to do and without the password."""
    with pytest.raises(ValueError, match=message) as refused:
        Settings(**fields)
    assert "'p'" not in str(refused.value)


@pytest.fixture
def mailed(settings, start_mail):
    """A mail server, and settings with it."""
    mailbox, fields = start_mail()
    return mailbox, settings.model_copy(update=fields)


def run_once(settings, pool):
    notifier = Notifier(
        pool=pool,
        client=webhook_client_of(settings),
        mail=mail_client_of(settings),
        metrics=NotifierMetrics(new_registry()),
        public_url="https://slowrank.example.org",
        instance="test",
    )
    return run(notifier.drain())


def test_a_finding_is_one_thread(mailed, client, pool, save_finding):
    """Added over the API; opened, escalated and resolved under three titles: three mails, one thread."""
    mailbox, settings = mailed
    client._app = create_app(settings, pool)
    made = client.post("/api/v1/webhooks", json={"url": f"mailto:{RECIPIENT}", "format": "email"})
    assert made.status_code == 201, made.text
    assert (made.json()["url"], "secret" in made.json()) == (f"mailto:{RECIPIENT}", False)
    rotated = client.post(f"/api/v1/webhooks/{made.json()['id']}/secret")
    assert (rotated.status_code, "secret" in rotated.json()) == (201, False)

    finding = save_finding(severity="warning", title="as it began")
    save_finding(node="gpu-0001", title="another")
    assert run_once(settings, pool) == 2
    changes = [
        {"severity": "critical", "title": "worse"},
        {"severity": "critical", "status": "resolved", "resolved_at": finding.onset + 60, "title": "over"},
    ]
    for number, change in enumerate(changes):
        with pool.connection() as conn:
            findings.save(
                conn, replace(finding, last_seen_at=finding.onset + 40 + number, **change), FindingConfig()
            )
        assert run_once(settings, pool) == 1
    other, *thread = sorted(mailbox.mails, key=lambda mail: "another" not in mail["subject"])
    assert [mail["subject"] for mail in thread] == [
        "[slowrank] as it began",
        *["Re: [slowrank] as it began"] * 2,
    ]
    assert [mail["references"] for mail in thread] == [None, *[thread[0]["message-id"]] * 2]
    assert len({mail["message-id"] for mail in mailbox.mails}) == 4
    assert [content(mail, "plain").splitlines()[0] for mail in thread] == [
        "WARNING",
        "Escalated: CRITICAL",
        "Resolved",
    ]
    assert f"https://slowrank.example.org/findings/{finding.id}?t=" in content(thread[2], "plain")
    assert other["references"] is None


@pytest.fixture
def exim(certificate):
    """Debian's mail server, which takes mail over TLS and after a login only."""
    with running(Exim(certificate)) as server:
        yield server


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="Exim changes to a user of its own, which needs root")
def test_debians_mail_server_takes_and_delivers_them(exim, certificate):
    """A thread of an ordinary, a hostile and a huge finding arrives as sent; what it refuses is an error."""
    fields = {"smtp_host": "localhost", "smtp_port": exim.port, "smtp_from": SENDER, "smtp_user": "slowrank"}
    fields |= {"smtp_password": EXIM_PASSWORD, "webhook_ca_file": certificate.with_suffix(".pem.crt")}
    first = send(fields, body=rendered(example(), plot="<svg>ü</svg>" * 1000))
    assert (first.status, first.error) == (250, "")
    for which in ("hostile", "huge"):
        assert send(fields, body=rendered(FINDINGS[which], receipt=first.receipt)).status == 250
    assert send(fields, url="mailto:nobody@example.org").error == "not sent: SMTP 550: no such user"
    assert send(fields, smtp_password="wrong").error.startswith("not sent: SMTP 535")
    assert send(fields, smtp_user=None, smtp_password=None).error == "not sent: SMTP 550: log in first"
    wait_until(lambda: len(exim.mails()) == 3, seconds=20, what="delivering three mails")
    arrived = [email.message_from_bytes(data, policy=email.policy.default) for data in exim.mails()]
    opening = [mail for mail in arrived if mail["references"] is None]
    assert [mail["message-id"] for mail in opening] == ["<msg_01@example.org>"]
    title = f"[slowrank] {example()['title']}"
    assert sorted(mail["subject"] for mail in arrived) == [f"Re: {title}", f"Re: {title}", title]
    for mail in arrived:
        assert mail.get_all("to") == [RECIPIENT]
        assert "bcc" not in mail
        assert "x-evil" not in mail
    [attached] = opening[0].iter_attachments()
    assert attached.get_content().decode() == "<svg>ü</svg>" * 1000


def test_a_mail_that_is_sent_again_is_the_same(mailed, pool, add_webhook, save_finding):
    """The server took it and the answer was lost: the second has the same ``Message-ID`` and all."""
    mailbox, settings = mailed
    add_webhook(f"mailto:{RECIPIENT}", format="email")
    save_finding()
    for _ in range(2):
        assert run_once(settings, pool) == 1
        with pool.connection() as conn:
            conn.execute("UPDATE deliveries SET state = 'pending', receipt = '', next_attempt_at = now()")
    boundaries = [mail.get_boundary() for mail in mailbox.mails]
    first, second = (raw.replace(b.encode(), b"") for raw, b in zip(mailbox.raw, boundaries, strict=True))
    assert first == second


@pytest.fixture
def mail_hook(add_webhook):
    """A webhook that sends mail."""
    return add_webhook(f"mailto:{RECIPIENT}", format="email")[0]


def test_the_notifiers_role_may_read_the_plots(mailed, api_dsn, mail_hook, slow_job):
    """The evidence is read from the roll-ups as slowrank_notifier, and lies in the mail as an image."""
    mailbox, settings = mailed
    dsn = psycopg.conninfo.make_conninfo(api_dsn, options="-c role=slowrank_notifier")
    with open_pool(dsn, name="slowrank_notifier") as as_notifier:
        assert run_once(settings, as_notifier) == 1
    [attached] = mailbox.mails[0].iter_attachments()
    image = attached.get_content().decode()
    assert image.count("<path") + image.count("<polyline") >= 3
    assert len(image) < 160_000


def test_the_api_refuses_what_no_mail_may_go_to(mailed, settings, client, pool, add_webhook):
    """Another domain, a URL of the other kind, and any mail where there is no mail server: 403."""
    _, with_mail = mailed
    ask = {"url": f"mailto:{RECIPIENT}", "format": "email"}
    answer = client.post("/api/v1/webhooks", json=ask)
    assert (answer.status_code, "SLOWRANK_SMTP_HOST" in answer.json()["detail"]) == (403, True)
    client._app = create_app(with_mail, pool)
    for change in ({"url": "mailto:a@example.net"}, {"url": "https://example.org/"}, {"format": "slack"}):
        assert client.post("/api/v1/webhooks", json=ask | change).status_code == 403, change
    assert client.post("/api/v1/webhooks", json=ask | {"secret": "x"}).status_code == 409
    hook = add_webhook("http://127.0.0.1/", format="slack")[0]
    path = f"/api/v1/webhooks/{hook.id}"
    assert client.patch(path, json={"format": "email"}).status_code == 403
    assert client.patch(path, json={"url": ask["url"]}).status_code == 403
    assert client.patch(path, json=ask).status_code == 200


def test_without_a_mail_server_the_webhook_fails_with_the_reason(settings, pool, add_webhook, save_finding):
    """The notifier's settings may differ from those of the API."""
    add_webhook(f"mailto:{RECIPIENT}", format="email")
    save_finding()
    run_once(settings, pool)
    with pool.connection() as conn:
        [(error,)] = conn.execute("SELECT last_error FROM deliveries").fetchall()
    assert "SLOWRANK_SMTP_HOST" in error
