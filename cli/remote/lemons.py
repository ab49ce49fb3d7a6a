"""``slowrank lemons``: list machines that fail repeatedly, from the findings of the API."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.admin.tables import Output, OutputOption, Row, View, ago, show
from cli.remote.client import KeyOption, UrlOption, client
from slowrank.client import findings

if TYPE_CHECKING:
    from detectors.fleet.lemon import MachineFault


class By(StrEnum):
    """Key of a history: the node, or the serial number of the board, which may have moved."""

    node = "node"
    serial = "serial"


def lemons(
    fleet: Annotated[int, typer.Option(min=1, help="Number of machines, healthy ones included.")],
    days: Annotated[int, typer.Option(min=2, max=365, help="Days to look back.")] = 28,
    by: Annotated[By, typer.Option(help="Follow nodes, or GPUs by serial number or UUID.")] = By.node,
    output: OutputOption = Output.table,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """List machines with far more findings than the typical machine, over several days and jobs."""
    from detectors.fleet import lemon

    with client(url, key) as api:
        past = list(api.each(findings.listed(from_=f"-{days}d", limit=1000)))
    found = lemon.lemons(faults(past, by), fleet=fleet)
    empty = f"no lemons: no machine failed repeatedly in {days} days"
    show([_row(asdict(one)) for one in found], output, View(_COLUMNS, empty))


def faults(findings: Iterable[Mapping[str, Any]], by: By) -> "list[MachineFault]":
    """Return the findings that count against machines: without those marked wrong by feedback."""
    from detectors.fleet.lemon import MachineFault

    found = []
    for finding in findings:
        subject = finding["subject"]
        machine = subject.get("node") if by is By.node else subject.get("serial") or subject.get("gpu_uuid")
        verdict = (finding.get("feedback") or {}).get("verdict", "true_positive")
        if not machine or not _about_machine(finding["kind"]) or verdict != "true_positive":
            continue
        jobs = finding.get("blast_radius", {}).get("jobs") or [None]
        onset = datetime.fromisoformat(finding["onset"]).timestamp()
        found.append(MachineFault(machine, onset, subject.get("job_id") or jobs[0]))
    return found


def _about_machine(name: str) -> bool:
    from alerts.kind import Standing
    from alerts.kinds import kind_of

    kind = kind_of(name)
    return kind.standing is not Standing.ASIDE and not kind.counts_findings


def _row(lemon: dict[str, Any]) -> dict[str, Any]:
    times = {name: datetime.fromtimestamp(lemon[name], UTC).isoformat() for name in ("first_at", "last_at")}
    return lemon | times


_COLUMNS: Mapping[str, Callable[[Row], object]] = {
    "machine": lambda m: m["machine"],
    "sure": lambda m: f"{m['probability']:.2f}",
    "episodes": lambda m: m["episodes"],
    "days": lambda m: m["days"],
    "jobs": lambda m: m["jobs"],
    "first": lambda m: ago(m["first_at"]),
    "last": lambda m: ago(m["last_at"]),
}
