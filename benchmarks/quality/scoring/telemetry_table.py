"""Failing telemetry by class: is it reported as such, and is no machine named as slow because of it?"""

from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.quality.run import OURS, Outcome
from benchmarks.quality.scoring.format import delays, interval
from benchmarks.quality.scoring.matching import match
from benchmarks.quality.scoring.metrics import bootstrap, precision, recall
from benchmarks.quality.scoring.score import Score, false_alarms, job_of, scores

COLUMNS = (
    "row", "events", "recall", "precision", "opened after s: median, P95", "false alarms", "named slow",
)  # fmt: skip

# Kinds of findings about a slow machine or job.
SLOW = ("straggler.", "throttle.", "clock.low", "data.", "gray.", "link.nic_slow", "host.cpu_contention")


def telemetry_rows(outcomes: Sequence[Outcome]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each class: findings about it, and other findings about the job in which it happened.

    For a class that needs no finding every alarm is false.
    """
    scored = scores(outcomes)
    rows = dict.fromkeys(event.row for outcome in outcomes for event in outcome.events)
    for row in rows:
        of_row = [(o, {e.job_id for e in o.events if e.row == row}) for o in outcomes]
        other = np.array([_other_findings(outcome, jobs) for outcome, jobs in of_row], np.float64)
        events = sum(e.row == row for outcome in outcomes for e in outcome.events)
        score = scored.get(row, Score())
        found = score.counts("true")[:, 0] if score.events else np.zeros(len(other))
        missed = score.counts("missed")[:, 0] if score.events else np.zeros(len(other))
        counts = np.column_stack([found, other[:, 0], missed])
        yield (
            row,
            str(events),
            *(interval(bootstrap(counts, statistic)) for statistic in (recall, precision)),
            delays(score.opened),
            *(str(int(n)) for n in other.sum(axis=0)),
        )


def _other_findings(outcome: Outcome, jobs: set[str | None]) -> tuple[int, int]:
    """Return the numbers of false or duplicate alarms about jobs, and of alarms that name them as slow."""
    result = match(outcome.events, outcome.alarms[OURS])
    wrong = [*false_alarms(outcome), *(alarm for _, alarm in result.duplicates)]
    slow = [a for a in outcome.alarms[OURS] if a.kind.startswith(SLOW)]
    false, named = (sum(job_of(outcome, a) in jobs for a in alarms) for alarms in (wrong, slow))
    return false, named
