"""A scope: all cases of one node, or of one job."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from alerts.cases.case import Case, case_key
from alerts.cases.likely_node import likely_ranks
from alerts.cases.tensor_group import shared
from alerts.kinds import kind_of
from slowrank.telemetry import Suspicion


@dataclass(frozen=True, slots=True)
class Scope:
    """The cases by dedup key.

    ``explained_by`` caches the key of the case that explains each (``explaining.explaining_key``).
    """

    cases: Mapping[str, Case] = field(default_factory=dict)
    explained_by: dict[tuple[str, float], str | None] = field(default_factory=dict, compare=False, repr=False)

    def having(self, case: Case) -> "Scope":
        """Return it with a case added, or in place of the one of the same key."""
        return Scope({**self.cases, case.key: case})


def job_scope(cluster: str, job: str | None) -> str:
    """Return the key of what concerns a whole job."""
    return f"{cluster}/job/{job}"


def scope_key(s: Suspicion) -> str:
    """Return what the suspicion's cause may share with others: its job, node or ranks, else only itself."""
    subject = s.subject
    if subject.type == "job" or kind_of(s.kind).of_job:
        return job_scope(s.cluster, subject.job_id)
    if subject.node:
        return f"{s.cluster}/node/{subject.node}"
    if subject.rank is None:
        return case_key(s)
    if (ranks := likely_ranks(s)) is not None:
        return f"{s.cluster}/ranks/{subject.job_id}/{ranks}"
    if subject.coords and "tp" in subject.coords:
        return f"{s.cluster}/group/{subject.job_id}/{shared(subject)}"
    return f"{s.cluster}/rank/{subject.job_id}/{subject.rank}"
