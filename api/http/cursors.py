"""Opaque page cursors: a position in a list, signed together with the filters of the list."""

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import Any

import msgspec

# 128 bits of the HMAC: beyond guessing, and the cursor stays short enough for a URL.
_MAC_BYTES = 16
_MAX_LENGTH = 1024


class BadCursor(ValueError):
    """A cursor that was modified, truncated, or belongs to other filters."""


class Cursors:
    """Signs and opens cursors with ``key``; without one, cursors are valid for this process only."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = key or secrets.token_bytes(32)

    def seal(self, position: list[Any], filters: Mapping[str, Any]) -> str:
        """Return the cursor text of a JSON-ready ``position``."""
        payload = msgspec.json.encode(position)
        return base64.urlsafe_b64encode(self._mac(payload, filters) + payload).rstrip(b"=").decode()

    def open(self, text: str, filters: Mapping[str, Any]) -> list[Any]:
        """Return the position inside ``text``. Raises ``BadCursor``."""
        if len(text) > _MAX_LENGTH:
            raise BadCursor("the cursor is too long; start from the first page")
        try:
            raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError) as error:
            raise BadCursor("the cursor is damaged; start from the first page") from error
        mac, payload = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(payload, filters)):
            raise BadCursor("the cursor was modified or belongs to other filters; start from the first page")
        position: list[Any] = msgspec.json.decode(payload)
        return position

    def _mac(self, payload: bytes, filters: Mapping[str, Any]) -> bytes:
        bound = msgspec.json.encode(sorted((k, str(v)) for k, v in filters.items() if v is not None))
        # JSON has no zero byte, so no text can be moved between filters and position.
        return hmac.new(self._key, bound + b"\0" + payload, hashlib.sha256).digest()[:_MAC_BYTES]
