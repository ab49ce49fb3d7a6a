"""Keys of advisory locks, by which processes exclude each other."""

import hashlib


def lock_key(what: str) -> int:
    """Return the 64-bit key of the advisory lock ``slowrank <what>``."""
    return int.from_bytes(hashlib.sha256(f"slowrank {what}".encode()).digest()[:8], "big", signed=True)
