"""Node-days of every benign row, and the false alarms in them one by one."""

from collections import Counter
from collections.abc import Iterator, Sequence

from benchmarks.quality.run import Outcome
from benchmarks.quality.scenarios.quiet import IDLE, RESIZED, ROLES
from benchmarks.quality.scoring.alarms import PAGE, TICKET
from benchmarks.quality.scoring.matching import Alarm
from benchmarks.quality.scoring.score import benign_row, false_alarms

# Rows of jobs that also have another row, in which their false alarms count.
SHARED = (ROLES, RESIZED)


def days_by_row(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Return the node-days of each benign row, by its name."""
    days: Counter[str] = Counter()
    for outcome in outcomes:
        days.update(outcome.row_days)
    return {row: round(days[row], 2) for row in sorted(days)}


def exposure(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield a table with the node-days of each row by tick, and a line for each false notification."""
    if not outcomes:
        return
    ticks = sorted({outcome.tick_seconds for outcome in outcomes}, reverse=True)
    days = {t: days_by_row([o for o in outcomes if o.tick_seconds == t]) for t in ticks}
    false = [(o, a) for o in outcomes for a in false_alarms(o) if a.severity in PAGE | TICKET]
    calls: Counter[tuple[str, bool]] = Counter()
    for outcome, alarm in false:
        calls[benign_row(outcome, alarm) or IDLE, alarm.severity in PAGE] += alarm.calls
    rows = (
        (
            row,
            *(f"{days[t].get(row, 0.0):,.1f}" for t in ticks),
            *("–" if row in SHARED else str(calls[row, paged]) for paged in (True, False)),
        )
        for row in sorted({row for by_row in days.values() for row in by_row})
    )
    header = ("row", *(f"node-days, {t:g} s ticks" for t in ticks), "false pages", "false tickets")
    yield from ("", "## every benign row on", "", *table(header, rows), "")
    yield from (f"* {_line(outcome, alarm)}" for outcome, alarm in false)


def table(header: Sequence[str], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    """Yield a table in Markdown with its first column aligned left."""
    yield "| " + " | ".join(header) + " |"
    yield "|---" + "|---:" * (len(header) - 1) + "|"
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def _line(outcome: Outcome, alarm: Alarm) -> str:
    node, gpu = alarm.places[0] if alarm.places else (None, None)
    place = "" if node is None else f" at {node}" + ("" if gpu is None else f" GPU {gpu}")
    row = benign_row(outcome, alarm)
    return (
        f"{outcome.part}, seed {outcome.seed}: {alarm.severity} {alarm.kind}{place}"
        f" ({', '.join(alarm.causes[:1])}), {row or 'no job'}"
    )
