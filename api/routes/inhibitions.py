"""Inhibition rules: an open finding keeps others from webhooks."""

from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from alerts.inhibition import Inhibition
from alerts.silence import ALERT_LABELS, LabelName, Matcher
from api.audit import record
from api.deps import ServicesDep
from api.http import conditional
from api.http.idempotency import IdempotentRoute
from api.http.ids import new_id
from api.http.problems import Problem, contradiction, not_found
from api.routes.silences import MatcherBody, ShownMatcher, shown_matcher
from api.security.auth import FindingsReader, FindingsWriter, Principal
from store.findings import inhibitions

router = APIRouter(prefix="/api/v1/inhibitions", tags=["silences"], route_class=IdempotentRoute)

_EXAMPLE: dict[str, Any] = {
    "id": "inh_01KB2P8TA0Q6N3X1R5J7M9V4CE",
    "source": [{"name": "kind", "value": "fabric.rail_degraded", "isRegex": False, "isEqual": True}],
    "target": [{"name": "kind", "value": "link.nic_slow", "isRegex": False, "isEqual": True}],
    "equal": ["cluster"],
    "createdBy": "anna",
    "comment": "the rail explains its ports",
}

Matchers = Annotated[list[MatcherBody], Field(min_length=1, max_length=16)]


class InhibitionBody(BaseModel, extra="forbid"):
    """A new rule: while a finding that ``source`` matches is open, what ``target`` matches is held back.

    Only findings with the same values of the labels ``equal``; one that matches both sides is not held back.
    """

    source: Matchers
    target: Matchers
    equal: list[LabelName] = Field(min_length=1, max_length=8)
    comment: str = Field(min_length=1, max_length=2000)


class ShownInhibition(BaseModel, json_schema_extra={"examples": [_EXAMPLE]}):
    """An inhibition rule."""

    id: str
    source: list[ShownMatcher]
    target: list[ShownMatcher]
    equal: list[str]
    createdBy: str = Field(description="Name of the key, its id where it has none.")
    comment: str


class InhibitionPage(BaseModel):
    """All rules that the key may see, the oldest first."""

    items: list[ShownInhibition]
    next_cursor: str = Field(description="Always empty.")


@router.get("", responses={200: {"model": InhibitionPage}, 304: conditional.UNCHANGED})
def read_inhibitions(request: Request, services: ServicesDep, principal: FindingsReader) -> Response:
    """List the rules, oldest first."""
    with services.pool.connection() as conn:
        found = [rule for rule in inhibitions.listed(conn) if _reaches(principal, rule)]
    return conditional.answer(request, {"items": [_shown(rule) for rule in found], "next_cursor": ""})


@router.post("", status_code=201, response_model=ShownInhibition)
def create_inhibition(
    body: InhibitionBody, request: Request, services: ServicesDep, principal: FindingsWriter
) -> dict[str, Any]:
    """Add a rule; what it holds back is sent once no finding does any more."""
    rule = Inhibition(
        id=new_id("inh", services.now()),
        source=_matchers("source", body.source),
        target=_matchers("target", body.target),
        equal=tuple(dict.fromkeys(body.equal)),
        created_by=principal.author,
        comment=body.comment,
    )
    if not _reaches(principal, rule):
        detail = "this key is limited to clusters; match cluster exactly on both sides"
        raise Problem(403, "forbidden", detail)
    with services.pool.connection() as conn, conn.transaction():
        if not inhibitions.add(conn, rule):
            detail = f"there are {inhibitions.MAX_RULES} rules; remove one first"
            raise Problem(409, "conflict", detail)
        record(conn, request, "inhibition.create", rule.id, {"comment": rule.comment})
    return _shown(rule)


@router.delete("/{inhibition_id}", status_code=204)
def remove_inhibition(
    inhibition_id: str, request: Request, services: ServicesDep, principal: FindingsWriter
) -> None:
    """Remove a rule; what it held back is sent within half a minute."""
    with services.pool.connection() as conn, conn.transaction():
        found = inhibitions.get(conn, inhibition_id)
        if found is None or not _reaches(principal, found):
            raise not_found("inhibition", inhibition_id)
        inhibitions.remove(conn, inhibition_id)
        record(conn, request, "inhibition.remove", inhibition_id, {})


def _matchers(side: str, given: list[MatcherBody]) -> tuple[Matcher, ...]:
    pointer = f"#/body/{side}"
    if all(matcher.name in ALERT_LABELS for matcher in given):
        raise contradiction(pointer, "match a label by which findings differ, not all or none of them")
    try:
        return tuple(matcher.matcher() for matcher in given)
    except ValueError as error:
        raise contradiction(pointer, str(error)) from error


def _reaches(principal: Principal, rule: Inhibition) -> bool:
    """Return whether the rule is about findings of the key's clusters only."""
    return not principal.clusters or all(
        any(
            m.name == "cluster" and m.is_equal and not m.is_regex and m.value in principal.clusters
            for m in side
        )
        for side in (rule.source, rule.target)
    )


def _shown(rule: Inhibition) -> dict[str, Any]:
    return {
        "id": rule.id,
        "source": [shown_matcher(matcher) for matcher in rule.source],
        "target": [shown_matcher(matcher) for matcher in rule.target],
        "equal": list(rule.equal),
        "createdBy": rule.created_by,
        "comment": rule.comment,
    }
