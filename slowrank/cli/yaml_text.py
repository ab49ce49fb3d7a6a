"""JSON values as YAML: its block form, with every string in double quotes, so that none is taken for more."""

import json
from collections.abc import Iterator, Mapping
from typing import Any


def yaml_of(value: Any) -> str:
    """Return a JSON value as YAML 1.1 and 1.2 alike, without a last newline."""
    return "\n".join(_lines(value))


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _under(f"{_quoted(str(key))}:", item)
    elif isinstance(value, list) and value:
        for item in value:
            first, *rest = _lines(item)
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)
    else:
        yield _quoted(value) if isinstance(value, str) else _plain(value)


def _under(head: str, item: Any) -> Iterator[str]:
    if isinstance(item, Mapping | list) and item:
        yield head
        yield from (f"  {line}" for line in _lines(item))
    else:
        yield f"{head} {next(_lines(item))}"


def _plain(value: Any) -> str:
    text = json.dumps(value)
    # To YAML 1.1 a number without a point is no fraction, and 1e-05 a string.
    return text.replace("e", ".0e") if isinstance(value, float) and "." not in text else text


def _quoted(text: str) -> str:
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(char: str) -> str:
    if char in '"\\':
        return f"\\{char}"
    return char if char.isprintable() else f"\\U{ord(char):08x}"
