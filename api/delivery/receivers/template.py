"""A body that a person wrote: a JSON value whose texts name fields of the notification.

A text such as ``"{{ finding.title }} on {{ finding.subject.node }}"`` is filled in; one that is one field,
``"{{ finding.evidence }}"``, becomes that value with its type. There is nothing else, neither code nor loops:
what a template can do is bounded by its size, and whatever a finding contains the body stays JSON.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from api.delivery.receivers.receiver import MAX_BODY, Notification, Receiver

# Bytes of a template as JSON (chosen: far more than a message has).
MAX_TEMPLATE = 8_000
# Objects and lists within each other (chosen: more than a message has; serializers end at some 200).
MAX_DEPTH = 32
# Characters of one value within a text (chosen: longer than any text of a finding but its evidence).
MAX_VALUE = 2_000
# The names of a notification; below ``finding`` are the fields of ``finding.v1``.
ROOTS = ("type", "timestamp", "link", "finding")

_PLACE = re.compile(r"\{\{\s*([a-z0-9_]+(?:\.[a-z0-9_]+)*)\s*\}\}", re.ASCII)


def check(template: object) -> None:
    """Raise ``ValueError`` where a template is too large or deep, or has a place that names no field."""
    if not _is_within(MAX_DEPTH, template):
        raise ValueError(f"a template has at most {MAX_DEPTH} objects and lists within each other")
    if len(msgspec.json.encode(template)) > MAX_TEMPLATE:
        raise ValueError(f"a template has at most {MAX_TEMPLATE} bytes")
    for text in _texts(template):
        rest = _PLACE.sub("", text)
        if "{{" in rest or "}}" in rest:
            raise ValueError(f"{text[:60]!r} has a place that is not of the form {{{{ finding.title }}}}")
        for path in _PLACE.findall(text):
            if path.partition(".")[0] not in ROOTS:
                raise ValueError(f"{path[:60]!r} names no field: begin with one of {', '.join(ROOTS)}")


def filled(template: Any, values: Mapping[str, Any]) -> Any:
    """Return the template with every place filled in; what is absent is null, or nothing within a text.

    >>> values = {"finding": {"title": "slow", "rank": 3}}
    >>> filled({"text": "{{ finding.title }}!", "rank": "{{ finding.rank }}"}, values)
    {'text': 'slow!', 'rank': 3}
    """
    if isinstance(template, str):
        whole = _PLACE.fullmatch(template)
        if whole:
            return _value(values, whole[1])
        return _PLACE.sub(lambda place: _text(_value(values, place[1])), template)
    if isinstance(template, Mapping):
        return {name: filled(value, values) for name, value in template.items()}
    if isinstance(template, Sequence):
        return [filled(value, values) for value in template]
    return template


def _value(values: Any, path: str) -> Any:
    for name in path.split("."):
        if isinstance(values, Mapping):
            values = values.get(name)
        elif isinstance(values, Sequence) and not isinstance(values, str) and name.isdigit():
            values = values[int(name)] if int(name) < len(values) else None
        else:
            return None
    return values


def _text(value: Any) -> str:
    if value is None:
        return ""
    return (value if isinstance(value, str) else msgspec.json.encode(value).decode())[:MAX_VALUE]


def _is_within(levels: int, template: Any) -> bool:
    """Return whether a template has at most so many levels of objects and lists."""
    if isinstance(template, Mapping):
        return levels > 0 and all(_is_within(levels - 1, value) for value in template.values())
    if isinstance(template, Sequence) and not isinstance(template, str):
        return levels > 0 and all(_is_within(levels - 1, value) for value in template)
    return True


def _texts(template: Any) -> Iterator[str]:
    if isinstance(template, str):
        yield template
    elif isinstance(template, Mapping):
        for value in template.values():
            yield from _texts(value)
    elif isinstance(template, Sequence):
        for value in template:
            yield from _texts(value)


def _render(notification: Notification, public_url: str) -> object:
    values = {
        "type": notification.type,
        "timestamp": notification.timestamp,
        "link": notification.link,
        "finding": notification.finding,
    }
    body = filled(DEFAULT if notification.template is None else notification.template, values)
    size = len(msgspec.json.encode(body))
    if size > MAX_BODY:
        raise ValueError(
            f"the template makes a body of {size} bytes; {MAX_BODY} are allowed: name fewer fields"
        )
    return body


# The body of a webhook without a template: what most chat systems take.
DEFAULT = {"text": "{{ finding.severity }}: {{ finding.title }} {{ link }}"}

RECEIVER = Receiver("template", "application/json", _render)
