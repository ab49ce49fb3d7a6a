"""The tables of `benchmarks/results/simulator.md`, and the same figures as JSON."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from benchmarks.quality.run import Outcome
from benchmarks.quality.scoring.exposure import days_by_row, exposure, table
from benchmarks.quality.scoring.format import delays, interval, median, p95
from benchmarks.quality.scoring.metrics import (
    Calibration,
    Estimate,
    bootstrap,
    calibration,
    calibration_error,
    f1,
    pooled,
    precision,
    recall,
    resampled,
    share,
    upper_rate,
)
from benchmarks.quality.scoring.named import NAMED_COLUMNS, SET_COLUMNS, named_rows, set_rows
from benchmarks.quality.scoring.score import Noise, Score, abstentions, noise, scores
from benchmarks.quality.scoring.telemetry_table import COLUMNS as TELEMETRY_COLUMNS
from benchmarks.quality.scoring.telemetry_table import telemetry_rows

ALL = "all"
COLUMNS = (
    "events", "recall", "precision", "F1", "machine F1", "found ≤ 30 steps", "top-1", "top-3", "kind",
    "cause top-1",
    "cause top-3", "onset in interval", "opened after s: median, P95", "left after s: median, P95", "≤ 15 s",
    "duplicates",
)  # fmt: skip
OF_FOUND = ("top1", "top3", "kind", "cause1", "cause3", "covered")


def lines(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield the report, part by part."""
    parts = sorted({outcome.part for outcome in outcomes})
    for part in parts:
        of_part = [outcome for outcome in outcomes if outcome.part == part]
        if any(outcome.events for outcome in of_part):
            yield from ("", f"## {part}: {_exposure(of_part)}", "")
            yield from table(("row", *COLUMNS), _event_rows(of_part))
            yield from ("", *_misses(outcome for outcome in of_part if not outcome.benign))
        if any(len(outcome.alarms) > 1 for outcome in of_part):
            yield from ("", *table(_DETECTOR_COLUMNS, _detector_rows(of_part)))
        yield from _special(of_part)
    yield from ("", "## false alarms", "", *table(_NOISE_COLUMNS, _noise_rows(outcomes)))
    yield from exposure([outcome for outcome in outcomes if outcome.benign])
    healthy = [outcome for outcome in outcomes if not outcome.events and not outcome.benign]
    yield from ("", "## healthy jobs", "", *table(_ABSTENTION_COLUMNS, _abstention_rows(healthy)))
    yield from ("", "## calibration", "", *_calibration_lines(outcomes))


def _special(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield the additional tables of some parts: failing telemetry, groups, several culprits at once."""
    if any(outcome.part == "telemetry" for outcome in outcomes):
        yield from ("", *table(TELEMETRY_COLUMNS, telemetry_rows(outcomes)))
    for columns, rows in ((NAMED_COLUMNS, named_rows(outcomes)), (SET_COLUMNS, set_rows(outcomes))):
        if found := list(rows):
            yield from ("", *table(columns, iter(found)))


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the same figures JSON-ready: by part, detector and row; rates by part."""
    parts = sorted({outcome.part for outcome in outcomes})
    by_part = {part: [o for o in outcomes if o.part == part] for part in parts}
    detectors = list(dict.fromkeys(name for outcome in outcomes for name in outcome.alarms))
    return {
        "seeds": sorted({outcome.seed for outcome in outcomes}),
        "parts": {
            part: {
                name: {row: figures(score) for row, score in scores(some, name, whole=ALL).items()}
                for name in detectors
            }
            for part, some in by_part.items()
        },
        "false_alarms": {part: _rates(noise(some)) for part, some in by_part.items()},
        "node_days_by_row": {part: days_by_row(some) for part, some in by_part.items()},
    }


def figures(score: Score) -> dict[str, Any]:
    """Return every figure of a score as [value, low, high] or a number."""
    counts = score.counts("true", "false", "missed")
    return {
        "events": score.events,
        "recall": _plain(bootstrap(counts, recall)),
        "precision": _plain(bootstrap(counts, precision)),
        "f1": _plain(bootstrap(counts, f1)),
        "machine_f1": _plain(bootstrap(score.counts("named", "wrong", "unnamed"), f1)),
        "soon": _plain(bootstrap(score.counts("soon", "events"), share)),
        **{name: _plain(bootstrap(score.counts(name, "true"), share)) for name in OF_FOUND},
        "opened_median_seconds": _plain(resampled(score.opened, median)),
        "opened_p95_seconds": _plain(resampled(score.opened, p95)),
        "left_median_seconds": _plain(resampled(score.delays, median)),
        "left_p95_seconds": _plain(resampled(score.delays, p95)),
        "calibration_error": _plain(resampled(score.sure, calibration_error)),
        "cause_calibration_error": _plain(resampled(score.why, calibration_error)),
        "duplicates": score.duplicates,
    }


def _event_rows(outcomes: Sequence[Outcome]) -> Iterator[tuple[str, ...]]:
    for row, score in scores(outcomes, whole=ALL).items():
        counts = score.counts("true", "false", "missed")
        yield (
            row,
            str(score.events),
            *(interval(bootstrap(counts, statistic)) for statistic in (recall, precision, f1)),
            interval(bootstrap(score.counts("named", "wrong", "unnamed"), f1)),
            interval(bootstrap(score.counts("soon", "events"), share)),
            *(_value(bootstrap(score.counts(name, "true"), share)) for name in OF_FOUND),
            *(delays(by_seed) for by_seed in (score.opened, score.delays)),
            _within(score, 15.0),
            str(score.duplicates),
        )


_DETECTOR_COLUMNS = (
    "detector",
    "recall",
    "precision",
    "F1",
    "machine F1",
    "false alarms",
    "per 1,000 rank-steps",
)


def _detector_rows(outcomes: Sequence[Outcome]) -> Iterator[tuple[str, ...]]:
    watched = [outcome for outcome in outcomes if len(outcome.alarms) > 1]
    for name in dict.fromkeys(name for outcome in watched for name in outcome.alarms):
        score = scores(watched, name, whole=ALL)[ALL]
        counts, named = score.counts("true", "false", "missed"), score.counts("named", "wrong", "unnamed")
        noisy = noise(watched, name)
        yield (
            name,
            *(interval(bootstrap(counts, statistic)) for statistic in (recall, precision, f1)),
            interval(bootstrap(named, f1)),
            str(noisy.accusations),
            f"{1000 * noisy.accusations / noisy.rank_steps:.4f}",
        )


def _misses(outcomes: Iterable[Outcome]) -> Iterator[str]:
    for outcome in outcomes:
        found = scores([outcome])
        for row, score in found.items():
            lost = int(score.counts("missed").sum())
            false = int(score.counts("false").sum())
            if lost or false:
                yield f"* {row}, seed {outcome.seed}: {lost} missed, {false} false alarms"


_NOISE_COLUMNS = (
    "runs", "node-days", "false pages", "per 1,000 node-days, 95 % upper bound", "false tickets",
    "per 1,000 node-days, 95 % upper bound",
)  # fmt: skip


def _noise_rows(outcomes: Sequence[Outcome]) -> Iterator[tuple[str, ...]]:
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        what = "healthy" if not outcome.events else "with faults"
        what = "every benign row on" if outcome.benign else what
        groups.setdefault(f"{what}, {outcome.tick_seconds:g} s ticks", []).append(outcome)
    for name, some in sorted(groups.items()):
        n = noise(some)
        yield (
            name, f"{n.node_days:.1f}", str(n.pages), f"{1000 * upper_rate(n.pages, n.node_days):.2f}",
            str(n.tickets), f"{1000 * upper_rate(n.tickets, n.node_days):.2f}",
        )  # fmt: skip


_ABSTENTION_COLUMNS = ("job", "runs", "machine accused", "right verdict", "other verdict")


def _abstention_rows(outcomes: Sequence[Outcome]) -> Iterator[tuple[str, ...]]:
    for name, a in abstentions(outcomes).items():
        yield name, str(a.jobs), str(a.accused), str(a.right), str(a.wrong)


def _calibration_lines(outcomes: Sequence[Outcome]) -> Iterator[str]:
    score = scores(outcomes, whole=ALL).get(ALL, Score())
    for name, pairs in (("finding", score.sure), ("cause", score.why)):
        rated = pooled(pairs)
        fit = calibration([p for p, _ in rated], [right for _, right in rated])
        error = interval(resampled(pairs, calibration_error))
        yield f"{name}: expected error {error}, Brier score {fit.brier:.3f}, n {len(rated)}"
        yield from ("", *table(("confidence", "right", "n"), _reliability(fit)), "")


def _reliability(fit: Calibration) -> Iterator[tuple[str, ...]]:
    for confidence, right, n in fit.bins:
        yield f"{confidence:.2f}", f"{right:.2f}", str(n)


def _exposure(outcomes: Sequence[Outcome]) -> str:
    seeds = sorted({outcome.seed for outcome in outcomes})
    days = sum(outcome.node_days for outcome in outcomes)
    return f"seeds {seeds[0]} to {seeds[-1]} ({len(seeds)}), {days:.1f} node-days"


def _value(e: Estimate) -> str:
    return "-" if math.isnan(e.value) else f"{e.value:.2f}"


def _within(score: Score, seconds: float) -> str:
    opened = pooled(score.opened)
    return f"{sum(d <= seconds for d in opened) / len(opened):.2f}" if opened else "-"


def _plain(e: Estimate) -> list[float | None]:
    return [_number(e.value), _number(e.low), _number(e.high)]


def _number(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None


def _rates(n: Noise) -> dict[str, float]:
    return {
        "node_days": round(n.node_days, 3), "pages": n.pages, "tickets": n.tickets,
        "pages_per_1000_node_days_upper": round(1000 * upper_rate(n.pages, n.node_days), 3),
        "tickets_per_1000_node_days_upper": round(1000 * upper_rate(n.tickets, n.node_days), 3),
    }  # fmt: skip
