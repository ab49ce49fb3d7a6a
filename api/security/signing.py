"""Webhook signatures of Standard Webhooks 1.0.0: HMAC-SHA256 over ``id.timestamp.body``."""

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Sequence

PREFIX = "whsec_"
# Length of a secret by Standard Webhooks 1.0.0.
_MIN_BYTES, _MAX_BYTES = 24, 64


def new_secret() -> str:
    """Return a fresh ``whsec_`` secret of 32 random bytes."""
    return PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def secret_bytes(secret: str) -> bytes:
    """Return the bytes of a ``whsec_`` secret. Raises ``ValueError`` with the rule it breaks."""
    if not secret.startswith(PREFIX):
        raise ValueError(f"a webhook secret starts with {PREFIX}")
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except binascii.Error as error:
        raise ValueError(f"a webhook secret is {PREFIX} followed by base64") from error
    if not _MIN_BYTES <= len(key) <= _MAX_BYTES:
        raise ValueError(f"a webhook secret holds {_MIN_BYTES} to {_MAX_BYTES} bytes, this one {len(key)}")
    return key


def sign(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """Return ``v1,<base64>`` for the exact bytes sent; ``timestamp`` is the attempt in Unix seconds."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    digest = hmac.new(secret_bytes(secret), signed, hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()


def signature_headers(
    active_secrets: Sequence[str], message_id: str, timestamp: int, body: bytes
) -> dict[str, str]:
    """Return the ``webhook-*`` headers, with a signature per secret (two during a rotation, or none)."""
    signatures = " ".join(sign(secret, message_id, timestamp, body) for secret in active_secrets)
    headers = {"webhook-id": message_id, "webhook-timestamp": str(timestamp)}
    return headers | ({"webhook-signature": signatures} if signatures else {})
