"""One source of a case: a detector, on one node, with the suspicion it raised last."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import msgspec

from alerts.config import FindingConfig
from alerts.kinds import PLANNED, kind_of
from slowrank.telemetry import Evidence, Suspicion

# Of evidence that was first looked for when its onset was no longer at hand.
_NO_PAST = "no values of before the onset are at hand"

# The latest announcements of a job that are kept. Chosen: an hour of changes, one a minute.
MOST_ANNOUNCED = 64


@dataclass(frozen=True, slots=True)
class Source:
    """The ``latest`` suspicion that a source raised, and ``until`` when: infinite while it has not cleared.

    ``confirmed``: steps were slow when what it shows began, or while it lasted. ``cleared``: its detector
    reported that it is over, so that what it raises next is on another account. ``on_trial``: its detector
    was on trial at some time.
    """

    latest: Suspicion
    until: float = math.inf
    confirmed: bool = False
    cleared: bool = False
    on_trial: bool = False

    @property
    def active(self) -> bool:
        """Whether it has not cleared."""
        return self.until == math.inf


def source_id(s: Suspicion) -> str:
    """Return the name of the source within its case: one detector may report a job from many nodes.

    Each change that a job announces is a source by itself, as a later one does not take back an earlier; what
    the nodes of a job announce within a second is one change.
    """
    if s.kind == PLANNED:
        return f"{s.detector}/{s.family}/{math.floor(s.onset)}"
    return f"{s.detector}/{s.family}/{s.subject.node or ''}"


def of_steps(s: Suspicion) -> bool:
    """Return whether a slow machine is suspected for its step times."""
    return kind_of(s.kind).steps_confirm and s.family == "timing"


def refreshed(before: Source | None, s: Suspicion) -> Source:
    """Return the source of ``s``; once confirmed it stays so while it lasts."""
    on_trial = s.shadow or (before is not None and before.on_trial)
    if before is None or not before.active or before.latest.onset != s.onset:
        return Source(s, on_trial=on_trial)
    return replace(before, latest=s, on_trial=on_trial)


def latest_announced(sources: Mapping[str, Source]) -> Mapping[str, Source]:
    """Return the sources with the latest ``MOST_ANNOUNCED`` of the changes that a job announced."""
    announced = [name for name, source in sources.items() if source.latest.kind == PLANNED]
    announced.sort(key=lambda name: (sources[name].latest.onset, name))
    dropped = set(announced[:-MOST_ANNOUNCED])
    return {name: source for name, source in sources.items() if name not in dropped}


def with_first_past(before: Source | None, s: Suspicion, first_seen_at: float) -> Suspicion:
    """Return ``s`` with all evidence compared with what was before the onset that its ``source`` first had.

    What has been slow for long, or in waves, is dated anew by its last rise; the past before that is part of
    the fault. ``first_seen_at``: when the case was first suspected.
    """
    last = None if before is None else before.latest
    # In another run the same place does other work.
    if last is None or (last.subject.job_id, last.subject.attempt) != (s.subject.job_id, s.subject.attempt):
        return s
    first = {(e.detector, e.metric): e for e in last.evidence}
    dates = [e.change_at for e in s.evidence if e.change_at is not None]
    redated = bool(dates) and min(dates) > first_seen_at
    pieces = (_with_past(e, first.get((e.detector, e.metric)), redated=redated) for e in s.evidence)
    return msgspec.structs.replace(s, evidence=tuple(pieces))


def _with_past(e: Evidence, first: Evidence | None, *, redated: bool) -> Evidence:
    if first is None or first.change_at is None:
        unknown = redated and e.baseline is not None
        return msgspec.structs.replace(e, baseline=None, change_at=None, note=_NO_PAST) if unknown else e
    if redated:
        # The note is about the later change as well.
        return msgspec.structs.replace(first, value=e.value, peers=e.peers)
    change_at = None if e.change_at is None else first.change_at
    return msgspec.structs.replace(e, baseline=first.baseline or e.baseline, change_at=change_at)


def with_confirmed(
    sources: Mapping[str, Source], s: Suspicion, config: FindingConfig
) -> Mapping[str, Source]:
    """Return the sources after ``s`` came in: hardware evidence is compared with the slow steps.

    Steps confirm it if they became slow with it, or were slow after it began and before it was last
    reported: a pause of the job changes the readings of its hardware, too, but has no slow steps.
    """
    if not kind_of(s.kind).steps_confirm:
        return sources
    steps = [source.latest for source in sources.values() if source.active and of_steps(source.latest)]
    if not steps:
        return sources

    def confirms(slow: Suspicion, shown: Suspicion) -> bool:
        together = abs(slow.onset - shown.onset) <= config.agree_within_seconds
        return together or shown.onset_hi < slow.ts <= shown.ts

    return {
        name: replace(
            source, confirmed=source.confirmed or any(confirms(slow, source.latest) for slow in steps)
        )
        for name, source in sources.items()
    }


def new_loss(source: Source | None, s: Suspicion) -> float:
    """Return the GPU-hours of slow steps in ``s`` that its ``source`` has not reported before.

    A suspicion has the total since its onset, less what it reported before it cleared. Where the onset moved
    back before the last report, as after a restart of the detector, only the share since that report is new.
    """
    if s.lost is None:
        return 0.0
    total, before = s.lost.gpu_seconds / 3600.0, None if source is None else source.latest
    if source is None or before is None or before.lost is None or source.cleared:
        return total
    if before.onset == s.onset:
        return total - before.lost.gpu_seconds / 3600.0
    if not source.active or s.onset >= before.ts:
        return total
    return total * max(0.0, s.ts - before.ts) / (s.ts - s.onset)


def loss_rate(sources: Iterable[Source]) -> float:
    """Return the GPU-hours an hour that slow steps cost at present."""
    return math.fsum(s.latest.lost.gpus for s in sources if s.active and s.latest.lost)
