"""Signed links to a finding, which open its page without an API key for ``LIFE``.

A link is ``PUBLIC_URL/findings/ID?t=UNTIL.MAC``: ``UNTIL`` is when it ends (Unix seconds, hexadecimal) and
``MAC`` the HMAC-SHA256 over id and end, cut to 128 bits. It gives read access to that finding only.
"""

import base64
import hashlib
import hmac
import re
from datetime import datetime, timedelta
from typing import Literal

from store.retention import EVENT_DAYS

# As long as the event that the link was sent for is stored.
LIFE = timedelta(days=EVENT_DAYS)

# What HMAC-SHA256 is cut to at most (RFC 2104, 5: no less than half of it, nor than 80 bits).
_MAC_BYTES = 16
_TOKEN = re.compile(r"([0-9a-f]{1,12})\.([A-Za-z0-9_-]{22})")

Opens = Literal["yes", "no", "expired"]


def finding_link(public_url: str, finding_id: str, *, key: bytes, at: datetime) -> str:
    """Return the link to a finding for an event ``at``: the same on every attempt of a delivery."""
    until = f"{int((at + LIFE).timestamp()):x}"
    return f"{public_url.rstrip('/')}/findings/{finding_id}?t={until}.{_mac(key, finding_id, until)}"


def opens(token: str, finding_id: str, *, key: bytes, now: datetime) -> Opens:
    """Return whether ``token`` gives access to the finding ``now``."""
    match = _TOKEN.fullmatch(token)
    if match is None or not hmac.compare_digest(match[2], _mac(key, finding_id, match[1])):
        return "no"
    return "yes" if now.timestamp() <= int(match[1], 16) else "expired"


def _mac(key: bytes, finding_id: str, until: str) -> str:
    # The first line separates this use of the key from any other.
    signed = f"slowrank finding link\n{finding_id}\n{until}".encode()
    mac = hmac.new(key, signed, hashlib.sha256).digest()[:_MAC_BYTES]
    return base64.urlsafe_b64encode(mac).rstrip(b"=").decode()
