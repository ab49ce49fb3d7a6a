"""Explains a finding to people: what it rests on, what was ruled out, how sure it is, what would change it.

Everything is derived from the finding itself (``finding.v1``), so that an old one is explained as it was.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from alerts.config import FindingConfig
from alerts.harm import IMPACT
from alerts.kind import Standing
from alerts.kinds import kind_of
from alerts.reasoning.fusion import LEAST_PEERS, MENTIONED_ABOVE
from alerts.report.quantity import deviation, quantity, unit_of
from alerts.report.title import place_in_text
from slowrank.telemetry.records import Subject

# Pieces of evidence that are put into sentences (chosen: what is read at night; the finding has all).
MOST_EVIDENCE = 6
_HARDWARE = ("gpu.", "nic.", "host.", "xid.")
_DEFAULTS = FindingConfig()

Document = Mapping[str, Any]


def cause_share(cause: Mapping[str, Any]) -> float | None:
    """Return the share of a cause of ``finding.v1`` among its hypotheses.

    None where nothing was weighed against it: a finding of today leaves it out, one of an earlier release has
    1 for a symptom.
    """
    share = cause.get("confidence")
    symptom = kind_of(str(cause.get("hypothesis"))).standing is Standing.SYMPTOM
    return None if share is None or (share >= 1.0 and symptom) else float(share)


@dataclass(frozen=True, slots=True)
class Section:
    """One question and the sentences that answer it."""

    title: str
    lines: tuple[str, ...]


def explanation(finding: Document) -> list[Section]:
    """Return the sections of a finding's explanation; one without an answer is left out."""
    sections = (
        Section(f"Why {place_in_text(Subject(**finding['subject']))}", tuple(_why(finding))),
        Section("Why not something else", tuple(_why_not(finding))),
        Section("How sure it is", tuple(_how_sure(finding))),
        Section("What would change the verdict", tuple(_what_would_change(finding))),
    )
    return [section for section in sections if section.lines]


def text_of(sections: Iterable[Section]) -> str:
    """Return sections as plain text."""
    blocks = ("\n".join([section.title, *(f"  - {line}" for line in section.lines)]) for section in sections)
    return "\n\n".join(blocks) + "\n"


def _why(finding: Document) -> Iterator[str]:
    pieces: Sequence[Document] = finding.get("evidence") or ()
    for piece in pieces[:MOST_EVIDENCE]:
        yield _measured(piece)
    if len(pieces) > MOST_EVIDENCE:
        yield f"{len(pieces) - MOST_EVIDENCE} more pieces of evidence agree; the finding lists them."
    job = finding.get("job_slowdown_ratio")
    since = finding.get("no_steps_since")
    if job is not None:
        yield f"Its job {'ran' if since else 'runs'} {job:.2f} times as long a step as when it was healthy."
    if since:
        yield f"Its job has made no steps since {since}."


def _measured(piece: Document) -> str:
    unit = unit_of(piece["metric"], piece.get("unit"))
    parts = [f"{piece['metric']} is {quantity(piece['value'], unit)}"]
    if peers := piece.get("peers"):
        parts.append(
            f"of {peers['n']} peers ({peers['group']}) nine in ten have {quantity(peers['p05'], unit)} to "
            f"{quantity(peers['p95'], unit)}, the median is {quantity(peers['median'], unit)}"
        )
        if rank := peers.get("rank_of_subject"):
            parts.append(f"by size it is number {rank} of {peers['n'] + 1}")
    if baseline := piece.get("baseline"):
        spread = deviation(baseline["mad"])
        away = (
            f", {abs(piece['value'] - baseline['median']) / spread:.3g} deviations away" if spread > 0 else ""
        )
        parts.append(
            f"usual for it is {quantity(baseline['median'], unit)} ± {quantity(spread, unit)} "
            f"({baseline['n']} values{away})"
        )
    if piece.get("note"):
        parts.append(str(piece["note"]))
    return f"{'; '.join(parts)} [{piece['detector']}]."


def _why_not(finding: Document) -> Iterator[str]:
    cause: Document = finding.get("cause") or {}
    if ruled_out := cause.get("ruled_out"):
        yield f"Checked and found fine: {', '.join(map(_named, ruled_out))}."
    for name, share in (cause.get("alternatives") or {}).items():
        yield f"It may also be {_named(name)} ({share:.0%})."
    if cause and not cause.get("alternatives"):
        yield f"No other explanation has more than {MENTIONED_ABOVE:.0%}."
    suspects: Sequence[Document] = finding.get("suspects") or ()
    for suspect in suspects:
        yield f"Suspect: {place_in_text(Subject(**suspect['subject']))} ({suspect['probability']:.0%})."
    if finding.get("group_key"):
        yield "Another finding explains it: they share one cause, and that one counts the cost."


def _how_sure(finding: Document) -> Iterator[str]:
    yield (
        f"Confidence {finding['confidence']:.0%} of a fault of the subject, calibrated on drawn and recorded "
        f"jobs. Its evidence is {finding['score']:.3g} times the threshold."
    )
    cause: Document = finding.get("cause") or {}
    if cause:
        share = cause_share(cause)
        sure = "" if share is None else f" ({share:.0%})"
        yield f"The likeliest cause is {_named(cause['hypothesis'])}{sure}."
    lo, hi = finding["onset_interval"]
    yield f"It began at {lo}." if lo == hi else f"It began between {lo} and {hi} (90 % interval)."
    if finding.get("flaps"):
        yield f"Recoveries and relapses so far: {finding['flaps']}."


def _what_would_change(finding: Document) -> Iterator[str]:
    yield from _missing(finding)
    others: Mapping[str, float] = (finding.get("cause") or {}).get("alternatives") or {}
    if others:
        likeliest = max(sorted(others), key=lambda name: others[name])
        yield f"More evidence for {_named(likeliest)} would make that the cause."
    advice: Document = (finding.get("action") or {}).get("advice") or {}
    if advice.get("expected_gpu_hours") is not None:
        yield (
            f"The advice is {advice['decision']}: {advice['gpu_hours_lost']:.3g} GPU-hours are lost and "
            f"{advice['expected_gpu_hours']:.3g} expected, against {advice['gpu_hours_to_restart']:.3g} for "
            "a restart."
        )
    may_rise = kind_of(str(finding["kind"])).pages == "hurt" and finding["severity"] != "critical"
    if may_rise and finding.get("job_slowdown_ratio") is None:
        yield f"It would be graver once a job measurably suffers (steps {IMPACT:.2f} times as long)."
    if finding["status"] in ("suspected", "open", "acknowledged"):
        yield (
            "It ends when all its detectors have seen recovery for `resolve_after_seconds` "
            f"({_DEFAULTS.resolve_after_seconds:.0f} s by default); a relapse within "
            f"{_DEFAULTS.reopen_within_seconds / 3600:.0f} hours reopens it."
        )


def _missing(finding: Document) -> Iterator[str]:
    """Yield what the telemetry at hand could not show, which limits the confidence."""
    pieces: Sequence[Document] = finding.get("evidence") or ()
    peers = [piece["peers"]["n"] for piece in pieces if piece.get("peers")]
    hardware = any(str(piece["metric"]).startswith(_HARDWARE) for piece in pieces)
    if peers and max(peers) < LEAST_PEERS and not hardware:
        yield f"With {LEAST_PEERS} peers or more it could be more than a warning."
    if pieces and not hardware and str(finding["kind"]).startswith("straggler."):
        yield "A counter of the machine that moved with it (clock, heat, errors) would name the cause."


def _named(name: str) -> str:
    """Return a cause in words, with its name where the words are not the name."""
    phrase = kind_of(name).phrase
    return f"{phrase} ({name})" if phrase else name
