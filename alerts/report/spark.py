"""Draws the evidence of a finding as lines of text, for terminals and for chat, which shows no SVG."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from alerts.report.quantity import quantity

BLOCKS = "▁▂▃▄▅▆▇█"


def plots(evidence: Mapping[str, Any], width: int, *, label: int) -> Iterator[tuple[str, ...]]:
    """Yield the lines of each plot of the evidence (``store.evidence``), on one time axis.

    ``width``: characters of the axis, after ``label`` ones for what a line is of.
    """
    for plot in evidence.get("plots") or ():
        times = evidence["t"]
        step = -(-len(times) // width)
        bands = [plot.get("p05") or [], plot.get("p95") or []]
        known = [v for column in (plot["y"], *bands) for v in column if v is not None]
        if not known:
            continue
        lo, hi = min(known), max(known)
        span = f"{_clock(evidence['from'])} to {_clock(evidence['to'])}"
        drawn = [
            f"{_heading(plot)}: {quantity(lo, plot['unit'])} to {quantity(hi, plot['unit'])}, {span}",
            f"{'subject':<{label}}{spark(_thinned(plot['y'], step), lo, hi)}",
        ]
        if plot.get("median"):
            drawn.append(f"{'peers':<{label}}{spark(_thinned(plot['median'], step), lo, hi)}")
        onset = sum(t + evidence["bucket_ms"] <= evidence["onset"] for t in times) // step
        yield (*drawn, f"{'':<{label}}{'':>{onset}}^ onset")


def spark(values: Sequence[float | None], lo: float, hi: float) -> str:
    """Return one block character for each value on the scale from ``lo`` to ``hi``, a blank for None."""
    span = (hi - lo) or 1.0
    top = len(BLOCKS) - 1
    return "".join(
        " " if v is None else BLOCKS[round(top * min(max((v - lo) / span, 0.0), 1.0))] for v in values
    )


def _heading(plot: Mapping[str, Any]) -> str:
    shown = {
        "peers": " beside its peers",
        "baseline": " beside its own past",
        "cause": ", the suspected cause",
    }
    usual = plot.get("baseline")
    past = f", {quantity(usual['median'], plot['unit'])}" if usual else ""
    return f"{plot['metric']}{shown.get(plot.get('role', ''), '')}{past}"


def _thinned(values: Sequence[float | None], step: int) -> list[float | None]:
    """Return the greatest of each ``step`` values."""
    groups = (values[i : i + step] for i in range(0, len(values), step))
    return [max((v for v in group if v is not None), default=None) for group in groups]


def _clock(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%H:%M:%S")
