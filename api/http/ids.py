"""New identifiers: a prefix and a ULID, which sorts by time."""

import secrets
from datetime import datetime

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def new_id(prefix: str, now: datetime) -> str:
    """Return an identifier such as ``whk_01JD7Q4Y6R8V2M3K5N9P0S1T2W``."""
    value = (int(now.timestamp() * 1000) << 80) | secrets.randbits(80)
    # 128 bits, of which 48 are milliseconds, in 26 characters of five.
    return f"{prefix}_" + "".join(_CROCKFORD[(value >> shift) & 31] for shift in range(125, -1, -5))
