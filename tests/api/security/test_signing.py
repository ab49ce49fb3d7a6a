"""Signatures are those of Standard Webhooks 1.0.0 and its reference library accepts them."""

import base64
from datetime import UTC, datetime

import pytest
from standardwebhooks.webhooks import Webhook

from api.security.signing import new_secret, secret_bytes, sign, signature_headers

SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
TIMESTAMP = 1795160472
BODY = b'{"type":"finding.opened","timestamp":"2026-11-20T07:41:12Z","data":{"id":"fnd_01"}}'


@pytest.mark.parametrize(
    ("message_id", "expected"),
    [
        ("msg_01JD7Q5B2C", "v1,Ms1terhCPe1yJJPHsde9Foan4nMSMIgAsfZtXrWcZHA="),
        ("msg_fnd_01.1", "v1,APqT74pey9jPmnGCxeypv94Jspzi5BEQmK22Q2EFvxE="),
    ],
)
def test_published_vectors(message_id, expected):
    """The published test vectors come out exactly."""
    assert expected == sign(SECRET, message_id, TIMESTAMP, BODY)


def test_the_reference_library_accepts_both_secrets_while_rotating():
    """A receiver with the old or with the new secret verifies the same request."""
    now = int(datetime.now(UTC).timestamp())
    old, new = new_secret(), new_secret()
    headers = signature_headers([new, old], "msg_1", now, BODY)

    for secret in (old, new):
        assert Webhook(secret).verify(BODY, headers)["data"] == {"id": "fnd_01"}


def test_another_body_gives_another_signature():
    """One changed byte changes the signature."""
    assert sign(SECRET, "msg_1", TIMESTAMP, BODY) != sign(SECRET, "msg_1", TIMESTAMP, BODY + b" ")


def test_new_secrets_differ_and_hold_32_bytes():
    """Every new secret is 32 random bytes."""
    assert new_secret() != new_secret()
    assert len(secret_bytes(new_secret())) == 32


@pytest.mark.parametrize(
    "bad", ["", "whsec_", "abc", "whsec_!!", "whsec_" + base64.b64encode(b"x" * 23).decode()]
)
def test_bad_secrets_are_named(bad):
    """A secret that is no secret is refused with the rule it breaks."""
    with pytest.raises(ValueError, match="webhook secret"):
        secret_bytes(bad)
