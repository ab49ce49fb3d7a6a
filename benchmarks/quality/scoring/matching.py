"""Matching of alarms with injected events, the same for all detectors; no adjustment of points or windows.

An alarm matches one event if its place and its onset agree; a second alarm about the same event is a
duplicate and counts as false. An event without a matching alarm is missed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

# Tolerance of an onset: so much before the true one, and after the end the larger of these. Chosen: 30 s or
# steps are the goal for detection.
EARLY_SECONDS = 2.0
LATE_SECONDS = 30.0
LATE_STEPS = 30.0

# Kinds about the telemetry of a node, which accuse no machine.
TELEMETRY = ("exporter.", "host.clock_skew", "self")

Places = tuple[tuple[str, int | None], ...]
"""One subject as (node, GPU) pairs: a node, one of its GPUs, or all nodes of a rack or switch."""
Coords = tuple[tuple[str, int], ...]
"""Common coordinates of the ranks of a parallel group, by the name of the dimension."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One injected cause. Times are Unix seconds, ``end`` None for a fault that lasts.

    ``row`` is its row of the table, ``nodes`` the machines that are right to name (several for a domain),
    ``gpu`` None where the whole node is at fault. ``verdicts`` are the right kinds, ``causes`` the right
    hypotheses. ``machine`` is False where naming a machine is wrong. ``groups`` are the parallel groups whose
    transfers a fault of a port slows.
    """

    row: str
    fault: str
    nodes: tuple[str, ...]
    gpu: int | None
    job_id: str | None
    onset: float
    end: float | None
    step_seconds: float
    magnitude: float
    verdicts: tuple[str, ...]
    causes: tuple[str, ...]
    machine: bool
    groups: tuple[Coords, ...] = ()


@dataclass(frozen=True, slots=True)
class Suspects:
    """The suspects of a finding, likeliest first, as of event time ``sent_at``."""

    sent_at: float
    ranked: tuple[Places, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """One notified finding of ours, or one alarm of a baseline.

    ``at`` is the event time of its opening, ``sent_at`` the event time the stream had reached when it was
    sent. ``places`` is its subject, empty for a job alone. ``causes`` are the hypotheses in order of their
    share, ``calls`` how often it was opened or reopened. ``suspects`` has an entry whenever they changed,
    ``group`` is the parallel group that it is about.
    """

    at: float
    sent_at: float
    onset: float
    kind: str
    places: Places = ()
    job_id: str | None = None
    severity: str = "warning"
    confidence: float | None = None
    causes: tuple[str, ...] = ()
    cause_confidence: float | None = None
    calls: int = 1
    onset_lo: float | None = None
    onset_hi: float | None = None
    suspects: tuple[Suspects, ...] = ()
    group: Coords = ()

    @property
    def accuses(self) -> bool:
        """Whether it names a machine; alarms about telemetry do not."""
        return bool(self.places) and not self.kind.startswith(TELEMETRY)

    @property
    def named(self) -> tuple[Places, ...]:
        """The places it names in order: its subject, if that is not a job, then its last suspects."""
        own = (self.places,) if self.places else ()
        return own + tuple(s for s in (self.suspects[-1].ranked if self.suspects else ()) if s not in own)


@dataclass(frozen=True, slots=True)
class Matches:
    """Matched pairs, missed events, and the alarms that match no event or one already matched.

    ``remarks`` name no machine and match no event; the table of abstentions judges them.
    """

    found: list[tuple[Event, Alarm]] = field(default_factory=list)
    missed: list[Event] = field(default_factory=list)
    false: list[Alarm] = field(default_factory=list)
    duplicates: list[tuple[Event, Alarm]] = field(default_factory=list)
    remarks: list[Alarm] = field(default_factory=list)


def match(events: Sequence[Event], alarms: Iterable[Alarm]) -> Matches:
    """Match alarms in the order in which they were sent, each with the open event nearest to its onset."""
    result, taken = Matches(), set[int]()
    for alarm in sorted(alarms, key=lambda a: (a.sent_at, a.at)):
        agreeing = [i for i, event in enumerate(events) if agrees(event, alarm)]
        agreeing.sort(key=lambda i: (i in taken, abs(events[i].onset - alarm.onset)))
        if not agreeing:
            (result.false if alarm.accuses else result.remarks).append(alarm)
        elif agreeing[0] in taken:
            result.duplicates.append((events[agreeing[0]], alarm))
        else:
            taken.add(agreeing[0])
            result.found.append((events[agreeing[0]], alarm))
    result.missed.extend(event for i, event in enumerate(events) if i not in taken)
    return result


def agrees(event: Event, alarm: Alarm) -> bool:
    """Return whether an alarm is about an event: the right place or job, and an onset in its window."""
    return in_window(event, alarm.onset) and _same_subject(event, alarm)


def in_window(event: Event, onset: float) -> bool:
    """Return whether an estimated onset lies between just before the true one and just after the end."""
    early = max(EARLY_SECONDS, event.step_seconds)
    late = max(LATE_SECONDS, LATE_STEPS * event.step_seconds)
    return event.onset - early <= onset and (event.end is None or onset <= event.end + late)


def is_culprit(event: Event, place: tuple[str, int | None]) -> bool:
    """Return whether a place is the machine at fault; a node may stand for its GPU."""
    node, gpu = place
    return node in event.nodes and (gpu is None or event.gpu is None or gpu == event.gpu)


def names_culprit(event: Event, places: Places) -> bool:
    """Return whether a subject is the machine or domain at fault: more than half of its places are."""
    return 2 * sum(is_culprit(event, place) for place in places) > len(places)


def is_of(kind: str, kinds: tuple[str, ...]) -> bool:
    """Return whether a kind is one of ``kinds``, or of a family among them (``xid.109`` of ``xid``)."""
    return any(kind == one or kind.startswith(f"{one}.") for one in kinds)


def _same_subject(event: Event, alarm: Alarm) -> bool:
    if not alarm.places and alarm.group and event.groups:
        return alarm.job_id == event.job_id and alarm.group in event.groups
    if not alarm.places:
        return is_of(alarm.kind, event.verdicts) and alarm.job_id == event.job_id
    if event.machine:
        return names_culprit(event, alarm.places)
    # Naming a machine is wrong here, except the missing rank of a hang and the node of a telemetry finding.
    named = alarm.accuses and not alarm.kind.startswith("hang.")
    return not named and is_of(alarm.kind, event.verdicts) and alarm.places[0][0] in event.nodes
