"""Draws the evidence of a finding as one SVG: up to three plots over one time axis, and a strip of its peers.

Plain text in, plain text out: no script, no style sheet, no reference to anything outside; every text is
escaped. It is an image in pages, mail and chat.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Any, Literal

Theme = Literal["light", "dark"]

# Pixels. Chosen: the image fits a column of an e-mail; a plot, its gap and the strip leave room for labels.
WIDTH = 640
_LEFT, _RIGHT, _TOP = 64, 8, 40
_PLOT, _GAP, _STRIP = 92, 26, 34

# Characters of a heading (chosen: what fits the width).
MAX_TEXT = 110
# XML 1.0 forbids most control characters, surrogates and two non-characters, escaped or not; directional
# marks would reorder the text beside them.
_FORBIDDEN = re.compile(
    "[^\t\n -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)

# Blue and orange of Okabe and Ito's palette for colour-blind readers, which also differ in luminance.
_COLOURS: dict[Theme, dict[str, str]] = {
    "light": {"back": "#ffffff", "text": "#222222", "weak": "#666666", "peers": "#56b4e9", "own": "#b84a00"},
    "dark": {"back": "#14171a", "text": "#e6e6e6", "weak": "#9aa0a6", "peers": "#3b82b0", "own": "#ffa64d"},
}
_HEADINGS = {"peers": "beside its peers", "baseline": "beside its own past", "cause": "suspected cause"}
_UNITS = (("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0), ("m", 1e-3), ("µ", 1e-6), ("n", 1e-9))


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where one plot stands, and the ranges of its axes; ``y0`` is its lower edge."""

    x_from: float
    x_to: float
    lo: float
    hi: float
    top: float

    def x(self, at: float) -> float:
        """Return the pixel of a time in milliseconds, inside the frame."""
        share = (at - self.x_from) / (self.x_to - self.x_from)
        return _LEFT + min(1.0, max(0.0, share)) * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        """Return the pixel of a value, inside the frame."""
        share = (value - self.lo) / (self.hi - self.lo)
        return self.top + _PLOT * (1 - min(1.0, max(0.0, share)))


def plot(finding: Mapping[str, Any], evidence: Mapping[str, Any], *, theme: Theme = "light") -> str:
    """Return the SVG of a finding's evidence (``store.evidence``); without telemetry it says so."""
    colours, plots = _COLOURS[theme], evidence.get("plots") or ()
    parts = [
        _text(_LEFT, 16, str(finding.get("title") or finding.get("id")), colours["text"], size=13, bold=True)
    ]
    top = float(_TOP)
    for one in plots:
        parts += _one_plot(one, evidence, top, colours)
        top += _PLOT + _GAP
    if not plots:
        parts.append(_text(_LEFT, top, "No telemetry of its window is stored.", colours["weak"]))
    if plots:
        parts += _time_axis(evidence, top - _GAP + 14, colours)
    if evidence.get("strip"):
        parts += _strip(evidence["strip"], top + 12, colours)
        top += _STRIP + _GAP
    height = round(top + 8)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" role="img" font-family="sans-serif" font-size="11">'
        f"<title>{_safe(str(finding.get('title') or ''))}</title>"
        f'<rect width="{WIDTH}" height="{height}" fill="{colours["back"]}"/>'
    )
    return head + "".join(parts) + "</svg>"


def _one_plot(
    one: Mapping[str, Any], evidence: Mapping[str, Any], top: float, colours: Mapping[str, str]
) -> list[str]:
    baseline = one.get("baseline") or {}
    columns = [one.get(name) or () for name in ("y", "p05", "p95")]
    values = [v for column in columns for v in column if v is not None]
    values += [v for name in ("lo", "hi") if (v := baseline.get(name)) is not None]
    if not values:
        return []
    frame = _frame(values, evidence, top)
    half = evidence.get("bucket_ms", 0) / 2
    middles = [at + half for at in evidence.get("t") or ()]
    heading = f"{one.get('metric')} ({one.get('unit')}) {_HEADINGS.get(str(one.get('role')), '')}"
    return [
        _text(_LEFT, top - 5, f"{heading}: {one.get('peers') or one.get('subject')}", colours["weak"]),
        *_axis(frame, colours),
        *_band(frame, middles, one, colours),
        *_limits(frame, baseline, colours),
        *_onset(frame, evidence, colours),
        _line(frame, middles, one.get("median") or (), colours["peers"], 1.0),
        _line(frame, middles, one.get("y") or (), colours["own"], 1.6),
    ]


def _frame(values: Sequence[float], evidence: Mapping[str, Any], top: float) -> _Frame:
    lo, hi = min(values), max(values)
    # At least a hundredth of the level, so that a constant series is a line and its rounding no drama.
    least = max(abs(hi), abs(lo)) / 100 or 1.0
    margin = max((hi - lo) * 0.05, (least - (hi - lo)) / 2)
    return _Frame(evidence["from"], evidence["to"], lo - margin, hi + margin, top)


def _axis(frame: _Frame, colours: Mapping[str, str]) -> Iterable[str]:
    bottom, right = frame.top + _PLOT, WIDTH - _RIGHT
    yield (
        f'<path d="M{_LEFT} {frame.top:.0f}V{bottom:.0f}H{right}" fill="none" stroke="{colours["weak"]}" '
        'stroke-width=".5"/>'
    )
    for value, y in ((frame.hi, frame.top + 8), (frame.lo, bottom)):
        yield _text(_LEFT - 4, y, _short(value), colours["weak"], end=True)


def _band(
    frame: _Frame, at: Sequence[float], one: Mapping[str, Any], colours: Mapping[str, str]
) -> Iterable[str]:
    """Yield one polygon for each stretch in which the peers have quantiles."""
    lows, highs = one.get("p05") or (), one.get("p95") or ()
    for stretch in _stretches(at, list(zip(lows, highs, strict=False))):
        edge = [(frame.x(t), frame.y(hi)) for t, (_, hi) in stretch]
        edge += [(frame.x(t), frame.y(lo)) for t, (lo, _) in reversed(stretch)]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in edge)
        yield f'<polygon points="{points}" fill="{colours["peers"]}" fill-opacity=".35"/>'


def _limits(frame: _Frame, baseline: Mapping[str, Any], colours: Mapping[str, str]) -> Iterable[str]:
    if baseline:
        top, bottom = frame.y(baseline["hi"]), frame.y(baseline["lo"])
        middle, right = frame.y(baseline["median"]), WIDTH - _RIGHT
        yield (
            f'<rect x="{_LEFT}" y="{top:.1f}" width="{right - _LEFT}" height="{bottom - top:.1f}" '
            f'fill="{colours["peers"]}" fill-opacity=".25"/>'
            f'<path d="M{_LEFT} {middle:.1f}H{right}" stroke="{colours["peers"]}" stroke-dasharray="4 3"/>'
        )


def _onset(frame: _Frame, evidence: Mapping[str, Any], colours: Mapping[str, str]) -> Iterable[str]:
    """Yield the credible interval of the onset as a bar and the onset as a line."""
    lo, hi = (frame.x(at) for at in evidence["onset_interval"])
    at = frame.x(evidence["onset"])
    yield (
        f'<rect x="{lo:.1f}" y="{frame.top:.0f}" width="{max(1.0, hi - lo):.1f}" height="{_PLOT}" '
        f'fill="{colours["own"]}" fill-opacity=".18"/>'
        f'<path d="M{at:.1f} {frame.top:.0f}v{_PLOT}" stroke="{colours["text"]}" stroke-dasharray="2 2"/>'
    )


def _line(
    frame: _Frame, at: Sequence[float], values: Sequence[float | None], colour: str, width: float
) -> str:
    stretches = _stretches(at, [None if v is None else (v, v) for v in values])
    moves = "".join(
        "M" + "L".join(f"{frame.x(t):.1f} {frame.y(v):.1f}" for t, (v, _) in stretch) + "h0"
        for stretch in stretches
    )
    # A single value is a dot: a path of one point draws nothing without a cap.
    cap = ' stroke-linecap="round"'
    return f'<path d="{moves}" fill="none" stroke="{colour}" stroke-width="{width}"{cap}/>' if moves else ""


def _stretches(
    at: Sequence[float], values: Sequence[tuple[float | None, float | None] | None]
) -> list[list[tuple[float, tuple[float, float]]]]:
    """Return runs of times whose pair of values is known: a gap is not bridged by a line."""
    runs: list[list[tuple[float, tuple[float, float]]]] = [[]]
    for t, pair in zip(at, values, strict=False):
        if pair is None or pair[0] is None or pair[1] is None:
            runs.append([])
        else:
            runs[-1].append((t, (pair[0], pair[1])))
    return [run for run in runs if run]


def _strip(strip: Mapping[str, Any], top: float, colours: Mapping[str, str]) -> Iterable[str]:
    """Yield the peers' means since the onset as ticks, and the subject's as a dot."""
    subject, values = strip.get("subject"), [v for v in strip["values"] if v is not None]
    spread = [*values, *([subject] if subject is not None else [])]
    lo, hi = min(spread), max(spread)
    width, height = WIDTH - _LEFT - _RIGHT, _STRIP - 14
    places = [_LEFT + width * ((v - lo) / (hi - lo) if hi > lo else 0.5) for v in spread]
    what = f"{strip['metric']} since the onset: {strip['n']} peers, and the subject as a dot"
    yield _text(_LEFT, top - 5, what, colours["weak"])
    ticks = "".join(f"M{x:.1f} {top + 2:.0f}v{height}" for x in places[: len(values)])
    yield f'<path d="{ticks}" stroke="{colours["peers"]}" stroke-opacity=".7"/>'
    if subject is not None:
        yield f'<circle cx="{places[-1]:.1f}" cy="{top + 2 + height / 2:.1f}" r="5" fill="{colours["own"]}"/>'
    for value, x, end in ((lo, _LEFT, False), (hi, WIDTH - _RIGHT, True)):
        yield _text(x, top + height + 12, _short(value), colours["weak"], end=end)


def _time_axis(evidence: Mapping[str, Any], y: float, colours: Mapping[str, str]) -> Iterable[str]:
    first, last = evidence["from"], evidence["to"]
    frame = _Frame(first, last, 0.0, 1.0, 0.0)
    for at, name, end in ((first, "", False), (evidence["onset"], "onset ", False), (last, "", True)):
        moment = datetime.fromtimestamp(at / 1000, UTC).strftime("%H:%M:%S")
        zone = " UTC" if end else ""
        yield _text(frame.x(at) + (4 if name else 0), y, f"{name}{moment}{zone}", colours["weak"], end=end)


def _text(
    x: float, y: float, text: str, colour: str, *, end: bool = False, size: int = 0, bold: bool = False
) -> str:
    look = (' text-anchor="end"' if end else "") + (f' font-size="{size}"' if size else "")
    look += ' font-weight="bold"' if bold else ""
    shown = text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
    return f'<text x="{x:.0f}" y="{y:.0f}" fill="{colour}"{look}>{_safe(shown)}</text>'


def _safe(text: str) -> str:
    return escape(_FORBIDDEN.sub("\ufffd", text))


def _short(value: float) -> str:
    """Return a number in at most seven characters, such as ``1.76G``."""
    size = abs(value)
    prefix, factor = next(((p, f) for p, f in _UNITS if size >= f), ("", 1.0))
    return f"{value / factor:.4g}{prefix}" if size and math.isfinite(value) else "0"
