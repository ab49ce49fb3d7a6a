"""slowrank about itself: settings without secrets, the schema of a finding, the OpenAPI document."""

from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from api import conditional
from api.auth import KeysAdmin, authenticated
from api.deps import ServicesDep
from api.finding_schema import finding_schema

router = APIRouter(prefix="/api/v1", tags=["meta"])


@router.get("/config")
def read_config(services: ServicesDep, _: KeysAdmin) -> dict[str, Any]:
    """The settings this process runs with; secrets show as asterisks."""
    return services.settings.redacted()


@router.get("/schemas/finding.v1.json", dependencies=[Depends(authenticated)])
def read_finding_schema(request: Request, services: ServicesDep) -> Response:
    """The JSON Schema of a finding."""
    return conditional.answer(request, finding_schema(services.settings.public_url))


@router.get("/openapi.json", dependencies=[Depends(authenticated)], include_in_schema=False)
def read_openapi(request: Request) -> Response:
    """This API as OpenAPI 3.1."""
    return conditional.answer(request, request.app.openapi())
