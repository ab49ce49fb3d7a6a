"""Makes text storable in PostgreSQL: no NUL, no lone surrogates; everything else passes unchanged."""

from typing import Any

_REPLACEMENT = "\ufffd"


def storable(text: str) -> str:
    """Return the text with characters that PostgreSQL refuses replaced by U+FFFD."""
    if text.isascii():
        return text.replace("\x00", _REPLACEMENT)
    return "".join(_REPLACEMENT if c == "\x00" or "\ud800" <= c <= "\udfff" else c for c in text)


def storable_json(value: Any) -> Any:
    """Return a JSON-like value with every text in it storable and every number finite (else null)."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, float):
        # False for NaN and infinity, which jsonb cannot hold.
        return value if value - value == 0.0 else None
    if isinstance(value, dict):
        return {storable(str(name)): storable_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [storable_json(item) for item in value]
    return value
