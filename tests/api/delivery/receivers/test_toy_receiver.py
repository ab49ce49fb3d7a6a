"""A new receiver is one file and one line: everything that lists receivers finds it by itself."""

import asyncio
import json

import pytest
from standardwebhooks.webhooks import Webhook as Verifier
from typer.testing import CliRunner

import cli.remote.webhook
from api.app import create_app, openapi_document
from api.delivery.receivers import registry
from tests.api.delivery.receivers import toy_receiver


@pytest.fixture(autouse=True)
def listed(monkeypatch):
    """The one line. Other tests of the process must not be served the document that lists it."""
    monkeypatch.setattr("api.app._served_document", openapi_document)
    monkeypatch.setattr(registry, "RECEIVERS", (*registry.RECEIVERS, toy_receiver.RECEIVER))


def test_a_finding_reaches_its_endpoint(client, settings, pool, receiver, save_finding, notifier):
    """Chosen over the API, it gets an opened finding in its own form, signed as all others."""
    client._app = create_app(settings.model_copy(update={"webhook_allow_ports": (receiver.port,)}), pool)
    made = client.post("/api/v1/webhooks", json={"url": receiver.url, "format": "toy"})
    assert made.status_code == 201, made.text

    finding = save_finding(status="open")
    asyncio.run(notifier(receiver)[0].drain())

    [request] = receiver.got
    parsed = json.loads(request.body)
    assert (parsed["what"], parsed["where"]) == (finding.title, "gpu-0423/gpu/5")
    assert f"/findings/{finding.id}?t=" in parsed["link"]
    assert Verifier(made.json()["secret"]).verify(request.body, request.headers) == parsed


def test_the_document_and_the_command_line_list_it(monkeypatch):
    """OpenAPI enumerates it for POST and PATCH; ``webhook add`` takes it and lists it for a wrong name."""
    schemas = openapi_document()["components"]["schemas"]
    assert schemas["WebhookBody"]["properties"]["format"]["enum"][-1] == "toy"
    assert schemas["WebhookPatch"]["properties"]["format"]["anyOf"][0]["enum"][-1] == "toy"

    monkeypatch.setenv("SLOWRANK_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("SLOWRANK_KEY", "none")
    add = ["add", "https://hooks.example.org/", "--format"]
    assert "no API answers" in CliRunner().invoke(cli.remote.webhook.app, [*add, "toy"]).output
    refused = CliRunner().invoke(cli.remote.webhook.app, [*add, "telegraph"])
    assert refused.exit_code == 2
    assert "pagerduty, template, toy" in " ".join(refused.output.replace("│", " ").split())
