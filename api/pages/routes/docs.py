"""The reference of the HTTP API as a page, from its OpenAPI document, without a script or another host."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from api.pages.access import visit
from api.pages.render import page
from api.pages.route import PageRoute
from api.security.auth import AnyKey, authenticated

router = APIRouter(include_in_schema=False, route_class=PageRoute)

_REFERENCE = "#/components/schemas/"


@router.get("/docs", dependencies=[Depends(authenticated)])
def show_docs(request: Request, principal: AnyKey) -> Response:
    """Show every operation with its parameters, bodies and answers, and the schemas they use."""
    document = request.app.openapi()
    return page(
        request,
        "docs.html",
        viewer=visit(request, principal).viewer,
        about=document["info"].get("description", ""),
        groups=_groups(document),
        schemas={
            name: json.dumps(schema, indent=2, ensure_ascii=False)
            for name, schema in sorted(document["components"]["schemas"].items())
        },
    )


def _groups(document: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the operations by their first tag, in the order of the document."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            tag = (operation.get("tags") or ["other"])[0]
            groups.setdefault(tag, []).append(_operation(method, path, operation))
    return groups


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> dict[str, Any]:
    body = operation.get("requestBody", {}).get("content", {})
    return {
        "method": method.upper(),
        "path": path,
        "id": f"{method}-{path.strip('/').replace('/', '-').replace('{', '').replace('}', '')}",
        "about": operation.get("description") or operation.get("summary", ""),
        "parameters": [_parameter(one) for one in operation.get("parameters", ())],
        "bodies": [(kind, list(_names(content.get("schema", {})))) for kind, content in body.items()],
        "answers": [_answer(status, one) for status, one in operation.get("responses", {}).items()],
    }


def _parameter(one: Mapping[str, Any]) -> dict[str, Any]:
    schema = one.get("schema", {})
    return {
        "name": one["name"],
        "where": one["in"],
        "required": one.get("required", False),
        "type": _type(schema),
        "default": schema.get("default"),
        "about": one.get("description") or schema.get("description") or "",
    }


def _answer(status: str, one: Mapping[str, Any]) -> dict[str, Any]:
    schemas = (content.get("schema", {}) for content in one.get("content", {}).values())
    names = dict.fromkeys(name for schema in schemas for name in _names(schema))
    return {"status": status, "about": one.get("description", ""), "schemas": list(names)}


def _type(schema: Mapping[str, Any]) -> str:
    """Return the type of a parameter in a few words: its values, where it has a few."""
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        return " or ".join(dict.fromkeys(kind for one in choices if (kind := _type(one)) != "null"))
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"][:8])) + (", …" if len(schema["enum"]) > 8 else "")
    if schema.get("type") == "array":
        return f"{_type(schema.get('items', {}))}, several"
    if "$ref" in schema:
        return str(schema["$ref"]).removeprefix(_REFERENCE)
    return str(schema.get("format") or schema.get("type") or "text")


def _names(schema: Any) -> Iterator[str]:
    """Yield the schemas that a schema refers to by name."""
    if isinstance(schema, Mapping):
        if "$ref" in schema:
            yield str(schema["$ref"]).removeprefix(_REFERENCE)
        for value in schema.values():
            yield from _names(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _names(value)
