"""Settings without secrets, the schema of a finding, and the OpenAPI document."""

from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from api.deps import ServicesDep
from api.finding_schema import finding_schema
from api.http import conditional
from api.security.auth import KeysAdmin, authenticated

router = APIRouter(prefix="/api/v1", tags=["meta"])


@router.get("/config")
def read_config(services: ServicesDep, _: KeysAdmin) -> dict[str, Any]:
    """Return the settings of this process; secrets are masked with asterisks."""
    return services.settings.redacted()


@router.get("/schemas/finding.v1.json", dependencies=[Depends(authenticated)])
def read_finding_schema(request: Request, services: ServicesDep) -> Response:
    """Return the JSON Schema of a finding."""
    return conditional.answer(request, finding_schema(services.settings.public_url))


@router.get("/openapi.json", dependencies=[Depends(authenticated)], include_in_schema=False)
def read_openapi(request: Request) -> Response:
    """Return the OpenAPI 3.1 document of this API."""
    return conditional.answer(request, request.app.openapi())
