"""Reads the filters of Alertmanager's API: ``node="n1"``, ``kind=~"hang.*"``, ``rack!="r1"``."""

import json
import re
from collections.abc import Iterable
from typing import Annotated

from fastapi import Query

from alerts.silence import Matcher
from api.http.problems import contradiction
from api.http.text_forms import in_form
from api.routes.silences import safe_matcher

_NAME, _OPERATOR = "[a-zA-Z_][a-zA-Z0-9_]{0,63}", "=~|!~|!=|="
_PATTERN = f"^{_NAME}({_OPERATOR})"
_PARTS = re.compile(f"(?s)(?P<name>{_NAME})(?P<operator>{_OPERATOR})(?P<value>.*)")

Filters = Annotated[
    list[
        Annotated[
            str,
            Query(pattern=_PATTERN, max_length=512),
            in_form(_PATTERN, 'write a matcher such as node="n1", kind=~"hang.*" or rack!="r1"'),
        ]
    ],
    Query(
        max_length=16,
        description='A matcher such as `node="n1"`; `=`, `!=`, `=~` and `!~`. All of them must match.',
    ),
]


def parsed(filters: Iterable[str]) -> list[Matcher]:
    """Return the matchers of filters. Raises the 409 problem for one that is none."""
    return [_matcher(text) for text in filters]


def _matcher(text: str) -> Matcher:
    found = _PARTS.fullmatch(text)
    if found is None:
        raise contradiction("#/query/filter", 'a filter is a matcher such as node="n1"')
    value, operator = found["value"].strip(), found["operator"]
    try:
        if value.startswith('"'):
            # Go quotes as JSON does, but for bytes that are no text.
            value = str(json.loads(value))
        return safe_matcher(found["name"], value, is_regex="~" in operator, is_equal="!" not in operator)
    except ValueError as error:
        raise contradiction("#/query/filter", str(error)) from error
