"""The OpenAPI 3.1 document: derived by the framework, with problem responses and the schema of a finding."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute, iter_route_contexts

from api.finding_schema import definitions
from api.http.problems import MEDIA_TYPE
from api.security.auth import scope_of

# Version of the interface (/api/v1), not of the build, so that releases do not change the frozen file.
VERSION = "1"
_ABOUT = (
    "Every POST accepts an `Idempotency-Key` header: repeated within 24 h, the request is carried out once "
    "and answered as the first time. The same key with another body, path or query is a 422; a repetition "
    "while the first request is in progress, or of one whose answer held a secret, is a 409."
)
_OPEN = frozenset({"/healthz", "/readyz", "/version"})


def document(app: FastAPI) -> dict[str, Any]:
    """Return the document of the app's routes."""
    made = get_openapi(title="slowrank", version=VERSION, description=_ABOUT, routes=app.routes)
    schemas = made["components"]["schemas"]
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    described = definitions("#/components/schemas/{name}")
    if clash := sorted(schemas.keys() & described.keys()):
        raise ValueError(f"two schemas have one name, rename that of the route: {', '.join(clash)}")
    schemas.update(described, FindingPage=_PAGE, Problem=_PROBLEM)
    scopes = _scopes(app)
    for path, operations in made["paths"].items():
        for method, operation in operations.items():
            # The framework's error format, which problems.install replaces.
            operation["responses"].pop("422", None)
            # In the order of the dependencies, which is another one with those that the app adds.
            if "security" in operation:
                named = [scope] if (scope := scopes.get((method, path))) else []
                keys = sorted(operation["security"], key=str)
                operation["security"] = [dict.fromkeys(one, named) for one in keys]
            if path not in _OPEN:
                operation["responses"]["default"] = _ERROR
    return made


def _scopes(app: FastAPI) -> dict[tuple[str, str], str]:
    """Return by method and path the scope that a route declares: the role that its key must have."""
    routes = (context.original_route for context in iter_route_contexts(app.routes))
    return {
        (method.lower(), route.path_format): scope
        for route in routes
        if isinstance(route, APIRoute) and (scope := scope_of(route.dependant))
        for method in route.methods or ()
    }


_ERROR = {
    "description": "A problem (RFC 9457).",
    "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
}
_PROBLEM = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "instance", "request_id"],
    "properties": {
        "type": {"type": "string", "format": "uri"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "instance": {"type": "string"},
        "request_id": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"pointer": {"type": "string"}, "detail": {"type": "string"}},
            },
        },
    },
}
_PAGE = {
    "type": "object",
    "required": ["items", "next_cursor", "total_estimate"],
    "properties": {
        "items": {"type": "array", "items": {"$ref": "#/components/schemas/Finding"}},
        "next_cursor": {"type": "string", "description": "Empty on the last page."},
        "total_estimate": {"type": "integer"},
    },
}
