"""Requests as values: against the API's document, and what the stream of events makes of lines."""

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from slowrank.client import access, cluster, delivery, findings, objects
from slowrank.client.errors import NoId
from slowrank.client.events import Reader

DOCUMENT = json.loads((Path(__file__).resolve().parents[3] / "api/openapi.json").read_text())
SCHEMAS = DOCUMENT["components"]["schemas"]
MADE = [
    function
    for module in (access, cluster, delivery, findings)
    for name, function in inspect.getmembers(module, inspect.isfunction)
    if function.__module__ == module.__name__ and not name.startswith("_")
]


def made_by(function):
    """The request of a function, with an argument for each parameter without a default."""
    needed = [
        p
        for p in inspect.signature(function).parameters.values()
        if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD
    ]
    values = {
        "matchers": [],
        "source": [],
        "target": [],
        "equal": [],
        "scopes": ["all"],
        "changes": {"enabled": True},
    }
    return function(*[values.get(p.name, "x") for p in needed])


@pytest.mark.parametrize("function", MADE, ids=lambda f: f"{f.__module__.rpartition('.')[2]}.{f.__name__}")
def test_every_request_is_one_of_the_api(function):
    """Path, method and parameters are those of an operation of the API's document."""
    request = made_by(function)
    (found,) = [
        operations
        for path, operations in DOCUMENT["paths"].items()
        if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", path), f"/api/v1{request.path}")
    ]
    operation = found[request.method.lower()]
    assert request.params.keys() <= {p["name"] for p in operation.get("parameters", ())}
    assert (request.json is not None) <= ("requestBody" in operation)


NAMES = ("Finding", "Subject", "Action", "Cause", "Evidence", "Node", "Gpu", "Job", "Band", "Series")
# Of a type for several answers the one with most fields.
NAMED_OTHERWISE = {
    "ApiKey": "CreatedKey",
    "AuditEntry": "AuditEntry",
    "Backtest": "ShownBacktest",
    "Delivery": "DeliveryWithTries",
    "Inhibition": "ShownInhibition",
    "Rotation": "NewSecret",
    "Silence": "ShownSilence",
    "TestResult": "TriedWebhook",
    "Webhook": "AddedWebhook",
}


@pytest.mark.parametrize(
    ("name", "schema"), [*zip(NAMES, NAMES, strict=True), *NAMED_OTHERWISE.items()], ids=lambda one: one
)
def test_types_have_the_fields_of_the_document(name, schema):
    """No field of an answer is missing in its type, and none is required that may be absent."""
    typed = getattr(objects, name)
    assert typed.__annotations__.keys() == SCHEMAS[schema]["properties"].keys()
    assert typed.__required_keys__ <= {*SCHEMAS[schema]["required"]}


def test_an_empty_id_is_refused():
    """Its path would name the list."""
    with pytest.raises(NoId):
        findings.read("")


def test_an_id_is_one_part_of_the_path():
    """Whatever its characters."""
    assert findings.read("../keys?a=b").path == "/findings/..%2Fkeys%3Fa%3Db"


def test_events_are_read_from_lines():
    """Comments and unknown fields are passed over; the last id is where the next stream begins."""
    body = '{"type": "finding.opened", "timestamp": "2026-11-20T07:34:02Z", "data": {"id": "fnd_1"}}'
    reader = Reader()
    lines = ["retry: 3000", "", ": ping", "", "id: msg_1", "event: finding.opened", f"data: {body}", ""]
    (event,) = filter(None, map(reader.event_at, lines))
    assert (event.id, event.type, event.finding["id"]) == ("msg_1", "finding.opened", "fnd_1")
    assert reader.headers() == {"last-event-id": "msg_1"}


def test_a_cut_event_is_not_joined_with_the_next_stream():
    """It comes again there."""
    reader = Reader("msg_1")
    assert reader.event_at('data: {"type": "finding.op') is None
    reader.open()
    assert reader.event_at("") is None


def test_making_a_request_loads_no_http_client():
    """A command imports httpx only where it connects."""
    code = "import sys; from slowrank.client import findings; assert 'httpx' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
