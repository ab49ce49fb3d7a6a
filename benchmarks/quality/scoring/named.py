"""Tables of what is named where several machines are at fault: groups within 20 s, concurrent culprits."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

from benchmarks.quality.run import OURS, Outcome
from benchmarks.quality.scoring.format import delays, interval
from benchmarks.quality.scoring.matching import Alarm, Event, match, names_culprit
from benchmarks.quality.scoring.metrics import Floats, bootstrap, share
from benchmarks.quality.scoring.score import job_of

# The goal for naming a slow group.
WITHIN_SECONDS = 20.0
# Most nodes that a hang names.
MOST = 3


@dataclass(slots=True)
class Named:
    """Seconds from onset until the group or its machine was named, by seed; counts of names."""

    after: dict[int, list[float]] = field(default_factory=dict)
    groups: int = 0
    machines: int = 0
    wrong: int = 0

    def within(self) -> Floats:
        """Return the numbers of those named within 20 s and of all, [seeds, 2]."""
        return np.array(
            [[sum(s <= WITHIN_SECONDS for s in some), len(some)] for _, some in sorted(self.after.items())]
        )


def where_named(outcomes: Sequence[Outcome]) -> dict[str, Named]:
    """Return by row when the slow group, or the nodes that a hung job waited for, were named."""
    table: dict[str, Named] = {}
    seeds = sorted({outcome.seed for outcome in outcomes})
    for outcome in outcomes:
        for event in outcome.events:
            if event.groups or event.fault == "job_hang":
                named = table.setdefault(event.row, Named({seed: [] for seed in seeds}))
                _count(named, outcome.seed, event, list(_about(outcome, event)))
    return table


def named_rows(outcomes: Sequence[Outcome]) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the table of groups."""
    for row, named in where_named(outcomes).items():
        yield (
            row,
            str(sum(map(len, named.after.values()))),
            str(named.groups),
            str(named.machines),
            str(named.wrong),
            interval(bootstrap(named.within(), share)),
            delays(named.after),
        )


NAMED_COLUMNS = (
    "row", "events", "group named", "machine named or suspected", "another group named",
    "either within 20 s", "left after s: median, P95",
)  # fmt: skip


def _about(outcome: Outcome, event: Event) -> Iterator[Alarm]:
    """Yield the alarms about the job since the onset; their own onsets are scored elsewhere."""
    for alarm in outcome.alarms[OURS]:
        if job_of(outcome, alarm) == event.job_id and alarm.sent_at >= event.onset:
            yield alarm


def _count(named: Named, seed: int, event: Event, about: Sequence[Alarm]) -> None:
    group = [alarm.sent_at for alarm in about if alarm.group and alarm.group in event.groups]
    machine = [alarm.sent_at for alarm in about if alarm.places and names_culprit(event, alarm.places)]
    if not event.groups:
        machine += [
            suspects.sent_at
            for alarm in about
            for suspects in alarm.suspects
            if any(names_culprit(event, places) for places in suspects.ranked[:MOST])
        ]
    named.groups += bool(group)
    named.machines += bool(machine)
    named.wrong += sum(bool(alarm.group) and alarm.group not in event.groups for alarm in about)
    named.after[seed].append(min([*group, *machine], default=np.inf) - event.onset)


SET_COLUMNS = (
    "row", "jobs", "culprits", "named", "among the first k", "jobs with all k among the first k",
    "one finding each", "false alarms",
)  # fmt: skip
_SET = ("culprits", "named", "first", "jobs", "whole", "single", "vain")


def set_recall(outcomes: Sequence[Outcome]) -> dict[str, Floats]:
    """Return the counts of ``_SET`` by row, [seeds, counts], of jobs with several culprits at once."""
    seeds = sorted({outcome.seed for outcome in outcomes})
    table: dict[str, Floats] = {}
    for outcome in outcomes:
        for events in _together(outcome):
            counts = table.setdefault(events[0].row, np.zeros((len(seeds), len(_SET))))
            counts[seeds.index(outcome.seed)] += _set(outcome, events)
    return table


def set_rows(outcomes: Sequence[Outcome]) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the table of several culprits, and one over all of them."""
    table: Mapping[str, Floats] = set_recall(outcomes)
    whole = {"all": np.sum([*table.values()], axis=0)} if len(table) > 1 else {}
    for row, counts in (dict(sorted(table.items())) | whole).items():
        n = dict(zip(_SET, counts.sum(axis=0).astype(int).tolist(), strict=True))
        shares = (("named", "culprits"), ("first", "culprits"), ("whole", "jobs"), ("single", "culprits"))
        yield (
            row,
            str(n["jobs"]),
            str(n["culprits"]),
            *(
                interval(bootstrap(counts[:, [_SET.index(part), _SET.index(of)]], share))
                for part, of in shares
            ),
            str(n["vain"]),
        )


def _together(outcome: Outcome) -> Iterator[list[Event]]:
    """Yield the events of each job that has several machines at fault at a time."""
    ours = [event for event in outcome.events if event.machine and event.job_id is not None]
    for _, group in groupby(sorted(ours, key=lambda e: e.job_id or ""), key=lambda e: e.job_id):
        events = list(group)
        last, first_end = max(e.onset for e in events), min(e.end or np.inf for e in events)
        if len(events) > 1 and last < first_end:
            yield events


def _set(outcome: Outcome, events: Sequence[Event]) -> list[float]:
    alarms = sorted(outcome.alarms[OURS], key=lambda a: a.sent_at)
    order = dict.fromkeys(
        places for alarm in alarms if job_of(outcome, alarm) == events[0].job_id for places in alarm.named
    )
    first = [*order][: len(events)]
    named = sum(any(names_culprit(event, places) for places in order) for event in events)
    soon = sum(any(names_culprit(event, places) for places in first) for event in events)
    result = match(outcome.events, outcome.alarms[OURS])
    again = [event for event, _ in result.duplicates]
    single = sum(event in events and event not in again for event, _ in result.found)
    vain = sum(job_of(outcome, alarm) == events[0].job_id for alarm in result.false)
    return [len(events), named, soon, 1, soon == len(events), single, vain]
