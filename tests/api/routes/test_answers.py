"""Bodies of webhooks, silences, rules, keys and the audit log are as the OpenAPI document describes them."""

import asyncio

import pytest

from api.routes.audit import AuditEntry, AuditPage
from api.routes.inhibitions import InhibitionPage, ShownInhibition
from api.routes.keys import CreatedKey, KeyPage, ShownKey
from api.routes.silences import ShownSilence, SilencePage
from api.routes.webhook_answers import (
    AddedWebhook,
    DeliveryPage,
    DeliveryWithTries,
    ShownDelivery,
    ShownWebhook,
    WebhookPage,
)

MODELS = [AuditEntry, ShownDelivery, ShownInhibition, ShownKey, ShownSilence, ShownWebhook]
ON_NODE = [{"name": "node", "value": "n1"}]


@pytest.mark.parametrize("model", MODELS)
def test_an_example_fits_its_model(model):
    """Every field with its type, and no field that the model lacks."""
    (example,) = model.model_config["json_schema_extra"]["examples"]
    assert set(example) <= set(model.model_fields)
    assert model.model_validate(example).model_dump(mode="json", exclude_unset=True) == example


def fits(model, answer):
    """Whether an answer is what its model says, without a field more."""
    body = answer.json()
    return model.model_validate(body).model_dump(mode="json", exclude_unset=True) == body


@pytest.mark.parametrize(
    ("path", "body", "made", "page"),
    [
        (
            "silences",
            {
                "matchers": ON_NODE,
                "startsAt": "2098-12-01T00:00:00Z",
                "endsAt": "2099-01-01T00:00:00Z",
                "comment": "fan",
                "recurrence": {"weekdays": ["sun"], "duration_seconds": 3600},
            },
            ShownSilence,
            SilencePage,
        ),
        (
            "inhibitions",
            {"source": ON_NODE, "target": ON_NODE, "equal": ["cluster"], "comment": "c"},
            ShownInhibition,
            InhibitionPage,
        ),
        ("keys", {"name": "k", "scopes": ["findings:read"], "days": 3}, CreatedKey, KeyPage),
        ("webhooks", {"url": "http://127.0.0.1:80/x", "matchers": ON_NODE}, AddedWebhook, WebhookPage),
        (
            "webhooks",
            {"url": "http://127.0.0.1:80/x", "format": "template", "template": {"a": 1}},
            AddedWebhook,
            WebhookPage,
        ),
    ],
)
def test_what_is_made_and_listed_fits(client, path, body, made, page):
    """The answer to a POST, the list, and the audit log of it."""
    answer = client.post(f"/api/v1/{path}", json=body)
    assert answer.status_code == 201, answer.text
    assert fits(made, answer)
    assert fits(page, client.get(f"/api/v1/{path}"))
    assert fits(AuditPage, client.get("/api/v1/audit"))


def test_deliveries_fit(client, receiver, add_webhook, save_finding, notifier):
    """Of a webhook that failed once, with its attempts."""
    webhook, _ = add_webhook("http://127.0.0.1:9/x")
    save_finding()
    asyncio.run(notifier(receiver)[0].drain())
    listed = client.get(f"/api/v1/webhooks/{webhook.id}/deliveries")
    assert fits(DeliveryPage, listed)
    (one,) = listed.json()["items"]
    shown = client.get(f"/api/v1/deliveries/{one['id']}")
    assert fits(DeliveryWithTries, shown)
    assert len(shown.json()["tries"]) == 1
    assert client.post(f"/api/v1/deliveries/{one['id']}/retry").json()["status"] == "pending"
