"""docs/webhooks.md: what it tells receivers to run, run."""

import base64
import hmac
import re
from pathlib import Path
from typing import get_args

import pytest

from alerts.notify import EventType
from api.delivery.retry import SCHEDULE
from api.security.signing import new_secret, signature_headers

PAGE = (Path(__file__).resolve().parents[2] / "docs/webhooks.md").read_text()
NOW = 1_795_160_472
BODY = '{"type":"finding.opened","data":{"title":"ü"}}'.encode()


@pytest.fixture
def is_genuine():
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names = {"base64": base64, "hmac": hmac}
    exec(code, names)
    return names["is_genuine"]


def test_it_takes_what_slowrank_signs(is_genuine):
    """One signature, or two while a secret is rotated: the receiver knows either secret."""
    old, new = new_secret(), new_secret()
    headers = signature_headers([new, old], "msg_1", NOW, BODY)
    assert is_genuine(old, headers, BODY, NOW)
    assert is_genuine(new, headers, BODY, NOW + 200)


@pytest.mark.parametrize(
    ("change", "body", "now"),
    [
        ({}, BODY + b" ", NOW),
        ({}, BODY, NOW + 301),
        ({"webhook-id": "msg_2"}, BODY, NOW),
        ({"webhook-timestamp": str(NOW + 1)}, BODY, NOW),
        ({"webhook-signature": "v1,AAAA"}, BODY, NOW),
        ({"webhook-signature": "v1,ünsigned"}, BODY, NOW),
        ({"webhook-signature": ""}, BODY, NOW),
    ],
)
def test_it_refuses_everything_else(is_genuine, change, body, now):
    """Another body, another id or time, an old delivery, a signature of somebody else."""
    secret = new_secret()
    headers = signature_headers([secret], "msg_1", NOW, BODY) | change
    assert not is_genuine(secret, headers, body, now)
    assert not is_genuine(new_secret(), signature_headers([secret], "msg_1", NOW, BODY), BODY, NOW)


def test_the_check_is_as_short_as_documented():
    """Six lines, to be read at a glance."""
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(code.strip().splitlines()) == 6


def test_types_and_retries_are_those_of_the_code():
    """The table names every event type and every pause."""
    for event in get_args(EventType):
        assert event.removeprefix("finding") in PAGE
    units = {"s": 1, "min": 60, "h": 3600}
    [line] = [line for line in PAGE.splitlines() if line.startswith("| retries |")]
    pauses = [int(n) * units[unit] for n, unit in re.findall(r"(\d+) (s|min|h)\b", line)]
    assert tuple(pauses) == SCHEDULE[1:]
