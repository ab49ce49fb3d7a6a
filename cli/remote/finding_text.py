"""A finding as text for people: cost, cause, what to do, and its plots as lines of block characters."""

import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from alerts.kinds import cause_name
from alerts.report.explanation import cause_share
from alerts.report.quantity import amount, quantity, unit_of
from alerts.report.spark import plots
from cli.admin.colour import by_severity
from cli.admin.tables import ago
from cli.remote.client import printable

# Width of the column of labels, one more than the longest.
LABEL = 10
# Limits of the text's width (chosen: narrower breaks every line, wider lines are hard to read).
MIN_WIDTH, MAX_WIDTH = 60, 100

# Fields of a subject, from the largest to the smallest place.
PLACE = (
    "cluster",
    "rack",
    "switch",
    "rail",
    "node",
    "gpu_index",
    "nic",
    "port",
    "job_id",
    "rank",
    "gpu_uuid",
)
# Pieces of evidence that are shown (chosen: what is read at a glance; ``-o json`` has all).
MAX_PIECES = 6


def lines(finding: Mapping[str, Any], evidence: Mapping[str, Any], width: int | None = None) -> Iterator[str]:
    """Yield the lines of a finding and its evidence, both as the API returns them; colours by severity.

    ``width`` in characters, by default that of the terminal. Texts are cleared of control characters.
    """
    wide = min(max(width or shutil.get_terminal_size().columns, MIN_WIDTH), MAX_WIDTH)
    severity = finding["severity"]
    head = f"{severity.upper()}  {finding['status']}  {finding['id']}"
    yield by_severity(printable(head), severity)
    yield from textwrap.wrap(printable(finding["title"]), wide)
    yield ""
    for label, text in _facts(finding):
        yield from _labelled(label, text, wide)
        for command in (finding["action"].get("commands") or ()) if label == "do" else ():
            # Never wrapped: it is to be copied.
            yield f"{'':<{LABEL}}$ {printable(command)}"
    for drawn in plots(evidence, wide - LABEL, label=LABEL):
        yield ""
        yield from map(printable, drawn)
    yield from _history(finding)


def _facts(finding: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "since", _since(finding)
    if finding.get("silenced_until"):
        yield "silenced", f"until {finding['silenced_until']} by {finding['silenced_by']}"
    yield "cost", _cost(finding)
    at, cause = finding["subject"], finding.get("cause")
    if cause:
        others = (
            f"{cause_name(name)} {share:.0%}" for name, share in (cause.get("alternatives") or {}).items()
        )
        beside = "; else " + ", ".join(others) if cause.get("alternatives") else ""
        share = cause_share(cause)
        sure = "" if share is None else f" {share:.0%}"
        yield "cause", f"{cause_name(cause['hypothesis'])}{sure}{beside}"
        if cause.get("ruled_out"):
            yield "not", ", ".join(map(cause_name, cause["ruled_out"]))
    yield "where", ", ".join(f"{name} {at[name]}" for name in PLACE if at.get(name) is not None)
    for number, piece in enumerate((finding.get("evidence") or ())[:MAX_PIECES]):
        yield "" if number else "evidence", _piece(piece)
    yield "do", finding["action"]["text"]
    if finding["action"].get("runbook_url"):
        yield "runbook", finding["action"]["runbook_url"]


def _since(finding: Mapping[str, Any]) -> str:
    lo, hi = finding.get("onset_interval") or (finding["onset"], finding["onset"])
    end = finding.get("resolved_at")
    lasted = f"until {end}" if end else f"{ago(finding['onset'])} ago"
    first, last = lo[11:19], hi[11:19]
    when = f"at {first}" if first == last else f"between {first} and {last}"
    return f"{finding['onset']} ({lasted}); onset {when}"


def _cost(finding: Mapping[str, Any]) -> str:
    lost, rate = finding.get("gpu_hours_lost"), finding.get("gpu_hours_lost_per_hour")
    ratio, since = finding.get("job_slowdown_ratio"), finding.get("no_steps_since")
    parts = ["no loss measured" if lost is None else f"{amount(lost)} GPU-hours lost"]
    if lost is not None and rate:
        parts[0] += f", {amount(rate)} more every hour"
    if lost is not None and ratio and ratio > 1:
        parts.append(f"the job {'ran' if since else 'runs'} at {100 / ratio:.1f} % of its speed")
    if since:
        parts.append(f"the job has made no steps since {since}")
    return "; ".join(parts)


def _piece(piece: Mapping[str, Any]) -> str:
    unit = unit_of(piece["metric"], piece.get("unit"))
    value, peers, baseline = piece.get("value"), piece.get("peers"), piece.get("baseline")
    text: str = piece["metric"] if value is None else f"{piece['metric']} {quantity(value, unit)}"
    if peers:
        text += f" (median of {peers['n']} peers {quantity(peers['median'], unit)})"
    elif baseline:
        text += f" (before {quantity(baseline['median'], unit)})"
    return text


def _labelled(label: str, text: str, width: int) -> list[str]:
    shown = printable(text)
    if "://" in shown:
        # Never wrapped: it is to be opened.
        return [f"{label:<{LABEL}}{shown}"]
    return textwrap.wrap(
        shown,
        width,
        initial_indent=f"{label:<{LABEL}}",
        subsequent_indent=" " * LABEL,
        break_long_words=False,
    ) or [label]


def _history(finding: Mapping[str, Any]) -> Iterator[str]:
    steps: Iterable[Mapping[str, Any]] = finding.get("history") or ()
    if steps:
        yield ""
    for step in steps:
        note = f": {step['note']}" if step.get("note") else ""
        yield printable(
            f"{step['at']}  {step['event'].removeprefix('finding.')} by {step.get('actor', '-')}{note}"
        )
