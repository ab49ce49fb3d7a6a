"""Refuses unknown query parameters: a misspelt filter would list everything."""

from fastapi import Request

from api.http.problems import invalid
from api.security.auth import AnyKey
from slowrank.telemetry.names import hint


def known_parameters(request: Request, _: AnyKey) -> None:
    """Raise the 422 problem for the first query parameter that the OpenAPI document does not define.

    Requests without a key are refused before, as anywhere.
    """
    operations = request.app.openapi()["paths"].get(request.scope["route"].path_format, {})
    declared = operations.get(request.method.lower(), {}).get("parameters", [])
    known = [parameter["name"] for parameter in declared if parameter["in"] == "query"]
    for name in request.query_params:
        if name not in known:
            there_is = hint(name, known) if known else "; this path takes none"
            raise invalid(f"#/query/{name[:64]}", f"there is no query parameter {name[:64]!r} here{there_is}")
