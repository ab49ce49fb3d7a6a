"""Derives the JSON Schema of ``finding.v1`` from ``alerts.finding.Finding``."""

import inspect
from typing import Any

import msgspec

from alerts.finding import Finding

_TIMES = ("onset", "detected_at", "last_seen_at", "resolved_at")
_TIME = {"type": "string", "format": "date-time"}
_EDIT = {"by": {"type": "string"}, "at": _TIME, "note": {"type": "string"}}
_STEP = {
    "version": {"type": "integer"},
    "event": {"type": "string"},
    "at": _TIME,
    "actor": {"type": "string"},
    "status": {"type": "string"},
    "severity": {"type": "string"},
    "note": {"type": "string"},
}

# Fields that people and the store add to a served finding.
_SERVED: dict[str, Any] = {
    "updated_at": _TIME,
    "acknowledged": {"type": "object", "properties": _EDIT},
    "closed": {"type": "object", "properties": _EDIT | {"occurrence": {"type": "integer"}}},
    "feedback": {
        "type": "object",
        "properties": _EDIT
        | {"verdict": {"enum": ["true_positive", "false_positive", "benign", "duplicate"]}},
    },
    "history": {"type": "array", "items": {"type": "object", "properties": _STEP}},
    "silenced_by": {"type": "string", "description": "The silence that mutes it now; in the API only."},
    "silenced_until": _TIME,
    "no_steps_since": _TIME
    | {"description": "Its job does not run: no step since then, to ten seconds; in the API only."},
    "truncated": {"type": "boolean", "description": "Shortened to fit a webhook's 20 kB."},
}


def definitions(ref: str = "#/$defs/{name}") -> dict[str, Any]:
    """Return the schemas by name, ``Finding`` among them; ``ref`` is the template of their references."""
    _, parts = msgspec.json.schema_components([Finding], ref_template=ref)
    for part in parts.values():
        part["description"] = inspect.cleandoc(part.get("description", ""))
        part["properties"] = {name: _plain(value) for name, value in part["properties"].items()}
    finding = parts["Finding"]
    finding["description"] = "One cause with its evidence, cost and next action. Times are RFC 3339 UTC."
    properties = finding["properties"]
    del properties["onset_lo"], properties["onset_hi"], properties["as_of"]
    properties |= dict.fromkeys(_TIMES, _TIME) | _SERVED
    properties["schema"] = {"const": "finding.v1"}
    properties["onset_interval"] = {"type": "array", "items": _TIME, "minItems": 2, "maxItems": 2}
    properties["detection_delay_seconds"] = {"type": "number"}
    required = [name for name in finding["required"] if name not in ("onset_lo", "onset_hi")]
    finding["required"] = [*required, "schema", "onset_interval", "detection_delay_seconds"]
    return dict(parts)


def finding_schema(public_url: str) -> dict[str, Any]:
    """Return the whole schema document."""
    parts = definitions()
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"{public_url.rstrip('/')}/api/v1/schemas/finding.v1.json",
    }
    finding: dict[str, Any] = parts.pop("Finding")
    return head | finding | {"$defs": parts}


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """Drop the null alternative and the default: unknown fields are left out, never null."""
    kept: list[dict[str, Any]] = [option for option in schema.get("anyOf", ()) if option != {"type": "null"}]
    if len(kept) == 1:
        return kept[0]
    return {name: value for name, value in schema.items() if name != "default"}
