"""Silences, in the format of Alertmanager."""

import re
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from psycopg import Connection
from pydantic import AwareDatetime, BaseModel, Field, StrictBool

from alerts.recurrence import MAX_SECONDS, WEEKDAYS, Recurrence, Weekday
from alerts.silence import ALERT_LABELS, MAX_VALUE, LabelName, Matcher, Silence
from api.audit import record
from api.deps import ServicesDep
from api.http import conditional
from api.http.idempotency import IdempotentRoute
from api.http.ids import new_id
from api.http.problems import Problem, contradiction, not_found
from api.http.times import Timestamp, rfc3339
from api.security.auth import FindingsReader, FindingsWriter, Principal
from store.findings import silences

router = APIRouter(prefix="/api/v1/silences", tags=["silences"], route_class=IdempotentRoute)

# Chosen: a silence that outlasts a year is a rule, and nobody remembers to end it.
MAX_DAYS = 366

_EXAMPLE: dict[str, Any] = {
    "id": "sil_01KB2P8TA0Q6N3X1R5J7M9V4CE",
    "status": {"state": "active"},
    "matchers": [{"name": "node", "value": "gpu-0423", "isRegex": False, "isEqual": True}],
    "startsAt": "2026-11-20T07:00:00Z",
    "endsAt": "2026-11-20T19:00:00Z",
    "createdBy": "anna",
    "comment": "fan is being replaced",
}
# Python's regular expressions backtrack: a match that fails has tried every way to choose among repetitions,
# optional parts and alternatives. Each of two repetitions, none of a group, has as many choices as the
# longest label has characters.
_MAX_REPEATS = 2
_UNSAFE = re.compile(r"\)\s*[*+?{]|\(\?|\\[1-9]")

# Chosen: some 10 ms for a regex and a label; two repetitions beside a group of seven alternatives.
_REPEAT_CHOICES = 128
_MAX_CHOICES = 2**18


class MatcherBody(BaseModel, extra="forbid"):
    """One condition on a label."""

    name: LabelName
    value: str = Field(max_length=MAX_VALUE)
    isRegex: StrictBool = False
    isEqual: StrictBool = True

    def matcher(self) -> Matcher:
        """Return the matcher. Raises ``ValueError`` for a regex that is invalid or could be slow."""
        return safe_matcher(self.name, self.value, is_regex=self.isRegex, is_equal=self.isEqual)


class RecurrenceBody(BaseModel, extra="forbid"):
    """Weekly occurrences, by the clock of a time zone, at the hour of ``startsAt``."""

    weekdays: Annotated[list[Weekday], Field(min_length=1, max_length=7)]
    duration_seconds: int = Field(ge=60, le=MAX_SECONDS)
    time_zone: str = Field(default="UTC", max_length=64, pattern=r"^[A-Za-z0-9_+/-]+$")

    def recurrence(self) -> Recurrence:
        """Return the recurrence. Raises ``ValueError`` for an unknown time zone."""
        return Recurrence(
            weekdays=tuple(day for day in WEEKDAYS if day in self.weekdays),
            duration_seconds=self.duration_seconds,
            time_zone=self.time_zone,
        )


class SilenceBody(BaseModel, extra="forbid"):
    """A new silence; end and comment are required. With a recurrence it is a maintenance window."""

    matchers: Annotated[list[MatcherBody], Field(min_length=1, max_length=16)]
    startsAt: AwareDatetime | None = None
    endsAt: AwareDatetime
    comment: str = Field(min_length=1, max_length=2000)
    recurrence: RecurrenceBody | None = None


class ShownMatcher(BaseModel):
    """A condition on a label, as Alertmanager writes it."""

    name: str
    value: str
    isRegex: bool
    isEqual: bool


class SilenceStatus(BaseModel):
    """Derived from the time."""

    state: Literal["pending", "active", "expired"]


class ShownRecurrence(BaseModel):
    """When a maintenance window recurs."""

    weekdays: list[Weekday]
    duration_seconds: int
    time_zone: str


class ShownSilence(BaseModel, json_schema_extra={"examples": [_EXAMPLE]}):
    """A silence in Alertmanager's shape, or a maintenance window."""

    id: str
    status: SilenceStatus
    matchers: list[ShownMatcher]
    startsAt: Timestamp
    endsAt: Timestamp
    createdBy: str = Field(description="Name of the key, its id where it has none.")
    comment: str
    recurrence: ShownRecurrence | None = Field(default=None, description="Only of a maintenance window.")


class SilencePage(BaseModel):
    """Silences of any state, the latest end first."""

    items: list[ShownSilence]
    next_cursor: str = Field(description="Always empty.")


@router.get("", responses={200: {"model": SilencePage}, 304: conditional.UNCHANGED})
def read_silences(request: Request, services: ServicesDep, principal: FindingsReader) -> Response:
    """List silences of any state, latest end first."""
    now = services.now()
    with services.pool.connection() as conn:
        found = [s for s in silences.listed(conn) if reaches(principal, s)]
    return conditional.answer(request, {"items": [shown(s, now) for s in found], "next_cursor": ""})


@router.post("", status_code=201, response_model=ShownSilence, response_model_exclude_unset=True)
def create_silence(
    body: SilenceBody, request: Request, services: ServicesDep, principal: FindingsWriter
) -> dict[str, Any]:
    """Mute findings that match all matchers until ``endsAt``."""
    now = services.now()
    silence = silence_of(body, principal, now)
    with services.pool.connection() as conn, conn.transaction():
        save_silence(conn, silence, now)
        record(conn, request, "silence.create", silence.id, {"comment": silence.comment})
    return shown(silence, now)


@router.delete("/{silence_id}", status_code=204)
def expire_silence(
    silence_id: str, request: Request, services: ServicesDep, principal: FindingsWriter
) -> None:
    """End a silence now; it stays in the list."""
    with services.pool.connection() as conn, conn.transaction():
        found = silences.get(conn, silence_id)
        if found is None or not reaches(principal, found):
            raise not_found("silence", silence_id)
        silences.expire(conn, silence_id, services.now())
        record(conn, request, "silence.expire", silence_id, {})


def save_silence(conn: Connection[Any], silence: Silence, now: datetime) -> None:
    """Store a silence. Raises the 409 problem where there are too many."""
    if not silences.save(conn, silence, now):
        detail = f"there are {silences.MAX_CURRENT:,} silences that have not ended; expire some first"
        raise Problem(409, "conflict", detail)


def safe_matcher(name: str, value: str, *, is_regex: bool, is_equal: bool) -> Matcher:
    """Return a matcher. Raises ``ValueError`` for a regex that is invalid or could be slow."""
    if is_regex and (_UNSAFE.search(value) or len(re.findall(r"[*+{]", value)) > _MAX_REPEATS):
        raise ValueError(
            f"a regex may have at most {_MAX_REPEATS} repetitions (*, +, {{}}), none of them of a group"
        )
    if is_regex and _choices(value) > _MAX_CHOICES:
        raise ValueError(
            "a regex may not combine so many alternatives (|), optional parts (?) and repetitions; "
            "use several matchers or a class such as [ab]"
        )
    return Matcher(name, value, is_regex, is_equal)


def _choices(regex: str) -> float:
    """Return an upper limit of the ways in which a match may go through a regex without repeated groups.

    Alternatives of one group add up, those of groups that follow each other multiply: at most when they are
    spread evenly. What is escaped or in a class counts as well.
    """
    groups = regex.count("(") + 1
    alternatives = ((regex.count("|") + groups) / groups) ** groups
    repeats = len(re.findall(r"[*+{]", regex))
    return float(alternatives * 2 ** regex.count("?") * _REPEAT_CHOICES**repeats)


def silence_of(body: SilenceBody, principal: Principal, now: datetime) -> Silence:
    """Return the silence that a body asks for. Raises the 409 and 403 problems."""
    starts_at = body.startsAt or now
    # Subtracted: adding days could exceed the last date of the calendar.
    if body.endsAt <= max(starts_at, now) or body.endsAt - starts_at > timedelta(days=MAX_DAYS):
        raise contradiction(
            "#/body/endsAt", f"endsAt must be after startsAt and now, at most {MAX_DAYS} days after startsAt"
        )
    if all(matcher.name in ALERT_LABELS for matcher in body.matchers):
        raise contradiction(
            "#/body/matchers", "match a label by which findings differ, not all or none of them"
        )
    try:
        matchers = tuple(m.matcher() for m in body.matchers)
    except ValueError as error:
        # A 409: the schema cannot express that a text is a regular expression.
        raise contradiction("#/body/matchers", str(error)) from error
    made = Silence(
        id=new_id("sil", now),
        matchers=matchers,
        starts_at=starts_at,
        ends_at=body.endsAt,
        created_by=principal.author,
        comment=body.comment,
        recurrence=_recurrence(body),
    )
    if not reaches(principal, made):
        raise Problem(
            403,
            "forbidden",
            "this key is limited to clusters; match cluster exactly, by one of them",
        )
    return made


def _recurrence(body: SilenceBody) -> Recurrence | None:
    try:
        return body.recurrence.recurrence() if body.recurrence else None
    except ValueError as error:
        raise contradiction("#/body/recurrence/time_zone", str(error)) from error


def reaches(principal: Principal, silence: Silence) -> bool:
    """Return whether the silence stays within the clusters of the key."""
    named = [m.value for m in silence.matchers if m.name == "cluster" and m.is_equal and not m.is_regex]
    return not principal.clusters or any(name in principal.clusters for name in named)


def shown(silence: Silence, now: datetime) -> dict[str, Any]:
    """Return a silence in Alertmanager's shape."""
    return {
        "id": silence.id,
        "status": {"state": silence.state(now)},
        "matchers": [shown_matcher(matcher) for matcher in silence.matchers],
        "startsAt": rfc3339(silence.starts_at),
        "endsAt": rfc3339(silence.ends_at),
        "createdBy": silence.created_by,
        "comment": silence.comment,
    } | ({"recurrence": asdict(silence.recurrence)} if silence.recurrence else {})


def shown_matcher(matcher: Matcher) -> dict[str, Any]:
    """Return a matcher in Alertmanager's shape."""
    return {
        "name": matcher.name,
        "value": matcher.value,
        "isRegex": matcher.is_regex,
        "isEqual": matcher.is_equal,
    }
