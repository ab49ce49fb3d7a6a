"""What was injected and what was told, matched event by event; nothing is adjusted in anybody's favour.

One alarm matches one event, when its place and its onset agree; a second alarm about the same event is a
duplicate and counts as false. An event no alarm matches is missed, however many samples of it looked odd.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

EARLY_SECONDS = 2.0
LATE_SECONDS = 30.0
LATE_STEPS = 30.0
"""An onset may be put so much before the true one and so much after the end, whichever is wider."""

TELEMETRY = ("exporter.", "host.clock_skew", "self")
"""Kinds that speak of the telemetry of a node and accuse no machine."""

Places = tuple[tuple[str, int | None], ...]
"""What is named as one: a node, one of its GPUs, or all nodes of a rack or switch."""
Coords = tuple[tuple[str, int], ...]
"""What the ranks of a parallel group share, by the name of the dimension."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One injected cause. Times are Unix seconds, ``end`` None for a fault that lasts.

    ``row`` is the line of the table it counts in, ``nodes`` the machines it is right to name (a domain has
    several), ``gpu`` None where the whole node is meant. ``verdicts`` are the kinds that are right about it,
    ``causes`` the hypotheses. ``machine`` is False where naming a machine is wrong. ``groups`` are the
    parallel groups whose transfers a fault of a port slows.
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
    """Who may be to blame, likeliest first, as said from the event time ``told`` on."""

    told: float
    ranked: tuple[Places, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """One thing somebody was told: by a finding of ours or by a rule of a baseline.

    ``at`` is the event time of its opening, ``told`` the event time the stream had reached when it went out.
    ``places`` are the (node, gpu) it is about, all nodes of a rack or switch; empty for a job alone.
    ``causes`` are the hypotheses in order of their share, ``calls`` how often it was opened or reopened.
    ``suspects`` has an entry whenever they changed, ``group`` is the parallel group that it is about.
    """

    at: float
    told: float
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
        """Whether it names a machine; what is told about telemetry names none."""
        return bool(self.places) and not self.kind.startswith(TELEMETRY)

    @property
    def named(self) -> tuple[Places, ...]:
        """What it names in order: its subject, where that is no job, then whom it suspected last."""
        own = (self.places,) if self.places else ()
        return own + tuple(s for s in (self.suspects[-1].ranked if self.suspects else ()) if s not in own)


@dataclass(frozen=True, slots=True)
class Matches:
    """The outcome: pairs, events nobody told of, and alarms by what is wrong with them.

    ``remarks`` name no machine and match no event: right or wrong by the table of abstentions alone.
    """

    found: list[tuple[Event, Alarm]] = field(default_factory=list)
    missed: list[Event] = field(default_factory=list)
    false: list[Alarm] = field(default_factory=list)
    duplicates: list[tuple[Event, Alarm]] = field(default_factory=list)
    remarks: list[Alarm] = field(default_factory=list)


def match(events: Sequence[Event], alarms: Iterable[Alarm]) -> Matches:
    """Match in the order in which the alarms were told; each takes the open event nearest to its onset."""
    result, taken = Matches(), set[int]()
    for alarm in sorted(alarms, key=lambda a: (a.told, a.at)):
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
    """Return whether the alarm tells of the event: the right place or job, and an onset in its window."""
    return in_window(event, alarm.onset) and _same_subject(event, alarm)


def in_window(event: Event, onset: float) -> bool:
    """Return whether an estimated onset lies between just before the true one and just after the end."""
    early = max(EARLY_SECONDS, event.step_seconds)
    late = max(LATE_SECONDS, LATE_STEPS * event.step_seconds)
    return event.onset - early <= onset and (event.end is None or onset <= event.end + late)


def names(event: Event, place: tuple[str, int | None]) -> bool:
    """Return whether a suspected place is the machine at fault; a node may stand for its GPU."""
    node, gpu = place
    return node in event.nodes and (gpu is None or event.gpu is None or gpu == event.gpu)


def tells(event: Event, places: Places) -> bool:
    """Return whether what is named as one is the machine or the domain at fault: most of it is."""
    return 2 * sum(names(event, place) for place in places) > len(places)


def is_of(kind: str, kinds: tuple[str, ...]) -> bool:
    """Return whether a kind is one of some, or of a family among them (``xid.109`` of ``xid``)."""
    return any(kind == known or kind.startswith(f"{known}.") for known in kinds)


def _same_subject(event: Event, alarm: Alarm) -> bool:
    if not alarm.places and alarm.group and event.groups:
        return alarm.job_id == event.job_id and alarm.group in event.groups
    if not alarm.places:
        return is_of(alarm.kind, event.verdicts) and alarm.job_id == event.job_id
    if event.machine:
        return tells(event, alarm.places)
    # Naming a machine is wrong here, but for a missing rank and for a telemetry finding about its node.
    named = alarm.accuses and not alarm.kind.startswith("hang.")
    return not named and is_of(alarm.kind, event.verdicts) and alarm.places[0][0] in event.nodes
