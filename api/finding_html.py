"""Renders a finding as plain HTML: no script, no external resource, every text escaped."""

import base64
import hashlib
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse}th,td{text-align:left;vertical-align:top;padding:.2rem 1rem .2rem 0}"
    "pre{white-space:pre-wrap;overflow-wrap:anywhere}"
)
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
HEADERS = {
    "content-security-policy": f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    # The URL holds the token that opens the page: keep it out of caches and Referer headers.
    "cache-control": "private, no-store",
    "referrer-policy": "no-referrer",
}


def html_page(title: str, *parts: str) -> str:
    """Return an HTML document of parts that are HTML already."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><meta name="robots" content="noindex">'
        f"<style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>{''.join(parts)}</body></html>"
    )


def paragraph(text: str) -> str:
    """Return a paragraph of plain text."""
    return f"<p>{escape(text)}</p>"


def finding_page(finding: Mapping[str, Any]) -> str:
    """Return the page of a ``finding.v1`` object."""
    action = finding.get("action") or {}
    commands = "\n".join(map(str, action.get("commands") or ()))
    measured = map(_evidence, finding.get("evidence") or ())
    return html_page(
        str(finding.get("title") or finding.get("id")),
        _table(None, _facts(finding)),
        "<h2>What to do</h2>",
        paragraph(str(action.get("text") or action.get("code") or "nothing")),
        f"<pre>{escape(commands)}</pre>" if commands else "",
        "<h2>Evidence</h2>",
        _table(("metric", "value", "usual", "unit", "detector"), measured),
    )


def _facts(finding: Mapping[str, Any]) -> Iterable[tuple[object, ...]]:
    cause, subject = finding.get("cause") or {}, finding.get("subject") or {}
    blast = finding.get("blast_radius") or {}
    facts = {
        "status": f"{finding.get('status')}, {finding.get('severity')}",
        "kind": finding.get("kind"),
        "where": ", ".join(f"{name} {at}" for name, at in subject.items() if at not in (None, "", {})),
        "since": finding.get("onset"),
        "until": finding.get("resolved_at"),
        "slower": _with(finding.get("slowdown_ratio"), "×"),
        "why": cause.get("hypothesis"),
        "lost": _with(finding.get("gpu_hours_lost"), " GPU-hours"),
        "losing": _with(finding.get("gpu_hours_lost_per_hour"), " GPU-hours an hour"),
        "jobs": ", ".join(map(str, blast.get("jobs") or ())),
        "confidence": finding.get("confidence"),
        "id": finding.get("id"),
    }
    return [(name, value) for name, value in facts.items() if value not in (None, "")]


def _with(number: float | None, unit: str) -> str:
    return "" if number is None else f"{number:.3g}{unit}"


def _evidence(piece: Mapping[str, Any]) -> tuple[object, ...]:
    usual = (piece.get("baseline") or {}).get("median")
    return (piece.get("metric"), piece.get("value"), usual, piece.get("unit"), piece.get("detector"))


def _table(headings: tuple[str, ...] | None, rows: Iterable[Iterable[object]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in headings or ())
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table>{f'<tr>{head}</tr>' if head else ''}{body}</table>" if body else "<p>none</p>"


def _cell(value: object) -> str:
    text = "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    return f"<td>{escape(text)}</td>"
