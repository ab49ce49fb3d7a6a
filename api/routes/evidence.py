"""What a finding rests on: columns of numbers around its onset, the same as an image, and in sentences."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from alerts.report.explanation import explanation, text_of
from alerts.report.plot import Theme, plot
from api.deps import ServicesDep
from api.http import conditional
from api.routes.findings import FindingId, visible
from api.security.auth import FindingsReader
from api.silent_jobs import no_steps
from store.evidence.freeze import evidence_of

router = APIRouter(prefix="/api/v1/findings", tags=["findings"])

Column = list[float | None]
Milliseconds = Annotated[int, Field(description="Epoch milliseconds.")]
SVG = "image/svg+xml"


class OwnPast(BaseModel):
    """The subject's own past."""

    median: float
    lo: float = Field(description="The median less three robust standard deviations.")
    hi: float
    n: int = Field(description="Values that it was computed from.")
    source: Literal["detector", "window"] = Field(
        description="Whether a detector gave it with its evidence, or it is of the values before the onset."
    )


class Plot(BaseModel):
    """One plot; its columns have one value for each time in ``t``, null where there is none."""

    role: Literal["peers", "baseline", "cause"] = Field(
        description="The subject beside its peers, beside its own past, or the suspected cause's metric."
    )
    metric: str
    unit: str = Field(description="As in docs/records.md; that of a counter is per second.")
    aggregate: str = Field(description="How the 10 s of a point became one value.")
    subject: str = Field(description="Whose line it is.")
    y: Column
    peers: str = Field(default="", description="Whose band it is; absent from `baseline`.")
    n: int = Field(default=0, description="The most peers that a point has.")
    p05: Column = []
    median: Column = []
    p95: Column = []
    baseline: OwnPast | None = None


class Strip(BaseModel):
    """The means of the peers since the onset, sorted; of more than 256 every k-th."""

    metric: str
    unit: str
    n: int = Field(description="Peers, shown or not.")
    values: list[float]
    p05: float
    median: float
    p95: float
    subject: float | None = None


class DrawnEvidence(BaseModel):
    """The plots of a finding over one time axis: five minutes before and after its onset."""

    finding_id: str
    frozen: bool = Field(description="Whether it is stored for good; until then later reads may show more.")
    onset: Milliseconds
    onset_interval: list[Milliseconds] = Field(min_length=2, max_length=2)
    detected_at: Milliseconds
    resolved_at: Milliseconds | None = None
    from_: Milliseconds = Field(alias="from")
    to: Milliseconds
    bucket_ms: int = Field(description="A point stands for this long from its time in `t`.")
    t: list[int] = Field(description="Epoch milliseconds of the points of every plot.")
    plots: list[Plot] = Field(description="Empty where no telemetry of the window is stored.")
    strip: Strip | None = None


class ExplainedSection(BaseModel):
    """One question and the sentences that answer it."""

    title: str
    lines: list[str]


class Explanation(BaseModel):
    """A finding explained to people."""

    finding_id: str
    sections: list[ExplainedSection]
    text: str = Field(description="All sections as plain text.")


_EXAMPLE: dict[str, Any] = {
    "finding_id": "fnd_01JD7Q4Y6R8V2M3K5N9P0S1T2W",
    "frozen": True,
    "onset": 1795160560000,
    "onset_interval": [1795160551000, 1795160572000],
    "detected_at": 1795160642000,
    "from": 1795160260000,
    "to": 1795160870000,
    "bucket_ms": 10000,
    "t": [1795160550000, 1795160560000],
    "plots": [
        {
            "role": "peers",
            "metric": "compute_seconds",
            "unit": "s",
            "aggregate": "mean",
            "subject": "gpu-0423 GPU 5 (rank 3389)",
            "y": [2.217, 2.904],
            "peers": "the other ranks of job 812345",
            "n": 127,
            "p05": [2.191, 2.19],
            "median": [2.217, 2.216],
            "p95": [2.249, 2.247],
        },
    ],
}
_JSON = {"model": DrawnEvidence, "content": {"application/json": {"example": _EXAMPLE}}}


@router.get("/{finding_id}/evidence", responses={200: _JSON, 304: conditional.UNCHANGED})
def read_evidence(
    finding_id: FindingId, request: Request, services: ServicesDep, principal: FindingsReader
) -> Response:
    """Return what the plots of a finding show: the subject, the band of its peers, its own past, the cause.

    It is read from the 10 s roll-ups and stored with the finding before these are removed.
    """
    with services.pool.connection() as conn:
        visible(conn, finding_id, principal)
        found = evidence_of(conn, finding_id)
    return conditional.answer(request, found)


@router.get(
    "/{finding_id}/plot.svg",
    responses={200: {"content": {SVG: {"schema": {"type": "string"}}}}, 304: conditional.UNCHANGED},
)
def read_plot(
    finding_id: FindingId,
    request: Request,
    services: ServicesDep,
    principal: FindingsReader,
    theme: Annotated[Theme, Query(description="Colours for a light or a dark page.")] = "light",
) -> Response:
    """Return the evidence of a finding as an image: SVG without script, style sheet or outside reference."""
    with services.pool.connection() as conn:
        stored = visible(conn, finding_id, principal)
        found = evidence_of(conn, finding_id)
    drawn = plot(stored.doc, found, theme=theme)
    return conditional.answer_as(request, drawn.encode(), SVG, conditional.etag(drawn))


@router.get("/{finding_id}/explain", responses={200: {"model": Explanation}, 304: conditional.UNCHANGED})
def read_explanation(
    finding_id: FindingId, request: Request, services: ServicesDep, principal: FindingsReader
) -> Response:
    """Explain a finding to people: why this subject, why no other, how sure, what would change it."""
    with services.pool.connection() as conn:
        stored = visible(conn, finding_id, principal)
        stopped = no_steps(conn, [stored.doc], services.now())[0]
    sections = explanation(stored.doc | stopped)
    shown = [{"title": section.title, "lines": list(section.lines)} for section in sections]
    return conditional.answer(
        request, {"finding_id": finding_id, "sections": shown, "text": text_of(sections)}
    )
