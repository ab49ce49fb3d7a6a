"""Requests about findings."""

from collections.abc import Sequence
from typing import Any

from slowrank.client.objects import ChronicGpu, Explanation, Finding, Page, Severity, Status, Verdict
from slowrank.client.request import Request, get, part


def listed(
    *,
    status: Sequence[Status] | None = None,
    severity: Sequence[Severity] | None = None,
    kind: Sequence[str] | None = None,
    cluster: str | None = None,
    node: str | None = None,
    job_id: str | None = None,
    min_confidence: float | None = None,
    shadow: str | None = None,
    from_: str | None = None,
    to: str | None = None,
    sort: str | None = None,
    limit: int = 100,
) -> Request[Page[Finding]]:
    """Return the request for findings, the costliest live ones or the newest first.

    ``node`` takes a Slurm host list, ``from_`` and ``to`` an RFC 3339 time, epoch milliseconds or ``-1h``;
    ``limit`` is the number of findings of a page, at most 1,000.
    """
    return get(
        "/findings",
        status=status and list(status),
        severity=severity and list(severity),
        kind=kind and list(kind),
        cluster=cluster,
        node=node,
        job_id=job_id,
        min_confidence=min_confidence,
        shadow=shadow,
        from_=from_,
        to=to,
        sort=sort,
        limit=limit,
    )


def read(finding_id: str) -> Request[Finding]:
    """Return the request for one finding with its evidence and history."""
    return get(f"/findings/{part(finding_id)}")


def evidence(finding_id: str) -> Request[dict[str, Any]]:
    """Return the request for what the plots of a finding show."""
    return get(f"/findings/{part(finding_id)}/evidence")


def explanation(finding_id: str) -> Request[Explanation]:
    """Return the request for the explanation of a finding."""
    return get(f"/findings/{part(finding_id)}/explain")


def acknowledge(finding_id: str, *, note: str = "", tag: str = "") -> Request[Finding]:
    """Return the request that acknowledges a finding; with the ``tag`` (ETag) only as it was read."""
    return _transition(finding_id, "acknowledged", note, tag)


def resolve(finding_id: str, *, note: str = "", tag: str = "") -> Request[Finding]:
    """Return the request that resolves a finding; ``tag`` as for ``acknowledge``."""
    return _transition(finding_id, "resolved", note, tag)


def feedback(finding_id: str, verdict: Verdict, *, note: str = "") -> Request[dict[str, str]]:
    """Return the request that records whether a finding was right."""
    body = {"verdict": verdict, "note": note}
    return Request("POST", f"/findings/{part(finding_id)}/feedback", json=body)


def chronic(
    *, days: int | None = None, cluster: str | None = None, limit: int = 100
) -> Request[Page[ChronicGpu]]:
    """Return the request for GPUs that are slightly slow in many jobs."""
    return get("/chronic", days=days, cluster=cluster, limit=limit)


def _transition(finding_id: str, status: str, note: str, tag: str) -> Request[Finding]:
    headers = {"if-match": tag} if tag else {}
    body = {"status": status, "note": note}
    return Request("PATCH", f"/findings/{part(finding_id)}", json=body, headers=headers)
