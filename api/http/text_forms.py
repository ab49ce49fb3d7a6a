"""Explains to people what a text must look like, where the framework would quote a regular expression."""

import re

from pydantic import BeforeValidator


def in_form(pattern: str, expected: str) -> BeforeValidator:
    """Return the check that answers ``expected`` where a text does not match ``pattern``.

    It stands after ``Field(pattern=…)``, which is what the document of the API shows.
    """
    compiled = re.compile(pattern)

    def check(value: object) -> object:
        if isinstance(value, str) and compiled.search(value) is None:
            raise ValueError(expected)
        return value

    return BeforeValidator(check)
