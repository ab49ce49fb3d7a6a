"""The forms on the page of a finding: acknowledge, resolve, silence, feedback."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from psycopg import Connection
from pydantic import BaseModel, Field

from alerts.silence import LabelName
from api.audit import record
from api.deps import Services, ServicesDep
from api.http.problems import Problem, not_found
from api.pages.access import FindingsForm, Visit
from api.pages.forms import Fields, checked
from api.pages.route import PageRoute
from api.routes.findings import Feedback, FindingId
from api.routes.silences import MatcherBody, SilenceBody, create_silence
from store.findings import findings
from store.findings.findings import Conflict, Edit, FindingChange
from store.findings.rows import StoredFinding

router = APIRouter(include_in_schema=False, route_class=PageRoute)

_Step = Callable[[Connection[Any], str, Edit], FindingChange]


class NoteForm(BaseModel, extra="ignore"):
    """A note on a finding."""

    note: str = Field(default="", max_length=2000)


class SilenceForm(BaseModel, extra="ignore"):
    """What to silence, for how long, and why; at most a week, as whoever needs more asks the API."""

    what: Literal["finding", "kind", "node"]
    hours: int = Field(ge=1, le=168)
    comment: str = Field(min_length=1, max_length=2000)


class FeedbackForm(Feedback, extra="ignore"):
    """A verdict, with the fields that every form has."""


@router.post("/findings/{finding_id}/acknowledge")
def acknowledge(
    finding_id: FindingId, request: Request, services: ServicesDep, seen: FindingsForm, fields: Fields
) -> Response:
    """Acknowledge a finding."""
    note = checked(NoteForm, fields).note
    _change(request, services, seen, finding_id, findings.acknowledge, "finding.acknowledged", note)
    return _back(finding_id, "acknowledge")


@router.post("/findings/{finding_id}/resolve")
def resolve(
    finding_id: FindingId, request: Request, services: ServicesDep, seen: FindingsForm, fields: Fields
) -> Response:
    """Resolve a finding."""
    note = checked(NoteForm, fields).note
    _change(request, services, seen, finding_id, findings.resolve, "finding.resolved", note)
    return _back(finding_id, "resolve")


@router.post("/findings/{finding_id}/silence")
def silence(
    finding_id: FindingId, request: Request, services: ServicesDep, seen: FindingsForm, fields: Fields
) -> Response:
    """Silence a finding, its kind on its node, or its node."""
    form = checked(SilenceForm, fields)
    with services.pool.connection() as conn:
        stored = _visible(conn, seen, finding_id)
    body = SilenceBody(
        matchers=_matchers(form.what, stored),
        endsAt=services.now() + timedelta(hours=form.hours),
        comment=form.comment,
    )
    create_silence(body, request, services, seen.principal)
    return _back(finding_id, "silence")


@router.post("/findings/{finding_id}/feedback")
def give_feedback(
    finding_id: FindingId, request: Request, services: ServicesDep, seen: FindingsForm, fields: Fields
) -> Response:
    """Record whether the finding was right."""
    form = checked(FeedbackForm, fields)

    def step(conn: Connection[Any], id_: str, edit: Edit) -> FindingChange:
        return findings.feedback(conn, id_, form.verdict, edit)

    _change(request, services, seen, finding_id, step, "finding.feedback", form.note, verdict=form.verdict)
    services.metrics.feedback.labels(form.verdict).inc()
    return _back(finding_id, "false_positive" if form.verdict == "false_positive" else "feedback")


def _change(
    request: Request,
    services: Services,
    seen: Visit,
    finding_id: str,
    step: _Step,
    action: str,
    note: str,
    **detail: str,
) -> None:
    # Without the version: a detector writes one every few seconds, and the form would never be of the last.
    edit = Edit(seen.principal.author, services.now(), note)
    with services.pool.connection() as conn, conn.transaction():
        _visible(conn, seen, finding_id)
        try:
            step(conn, finding_id, edit)
        except Conflict as error:
            raise Problem(409, "conflict", f"{error}; reload its page") from error
        record(conn, request, action, finding_id, {"note": note, **detail})


def _visible(conn: Connection[Any], seen: Visit, finding_id: str) -> StoredFinding:
    stored = findings.get(conn, finding_id)
    if stored is None or not seen.principal.may_see(stored.cluster):
        raise not_found("finding", finding_id)
    return stored


def _matchers(what: str, stored: StoredFinding) -> list[MatcherBody]:
    node = stored.doc["subject"].get("node")
    # The cluster first: a key that is limited to clusters may silence within them only.
    values: dict[LabelName, str] = {"cluster": stored.cluster}
    if what == "finding" or not node:
        values["finding_id"] = stored.id
    else:
        values["node"] = node
        if what == "kind":
            values["kind"] = stored.doc["kind"]
    return [MatcherBody(name=name, value=value) for name, value in values.items()]


def _back(finding_id: str, done: str) -> Response:
    return RedirectResponse(f"/findings/{finding_id}?done={done}", 303)
