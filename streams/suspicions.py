"""Subjects and suspicions written the same way by every node rule."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from msgspec.structs import asdict

from slowrank.telemetry import Evidence, HangVote, NodeEvent, NodeSample, Subject, Suspicion
from slowrank.telemetry.messages import HangSignal
from slowrank.telemetry.records import Family, Severity, SubjectType
from streams.debounce import State

# Longest GPU index; a longer number is a UUID (chosen: above the GPUs of any machine).
_INDEX_DIGITS = 4


@dataclass(frozen=True, slots=True)
class Location:
    """Where a subject is: its node, with the node's job and domains."""

    cluster: str
    node: str
    job_id: str | None = None
    rack: str | None = None
    switch: str | None = None

    @staticmethod
    def of(sample: NodeSample) -> "Location":
        """Return where a sample was read."""
        rack, switch = sample.labels.get("rack"), sample.labels.get("switch")
        return _location(sample.cluster, sample.node, sample.job_id, rack, switch)

    def whole_node(self) -> Subject:
        """Return the node itself as a subject."""
        return self._subject("node")

    def gpu(self, instance: str) -> Subject:
        """Return a GPU by its index, or by its UUID where the exporter names it so."""
        index = int(instance) if instance.isdecimal() and len(instance) <= _INDEX_DIGITS else None
        return self._subject("gpu", gpu_index=index, gpu_uuid=None if index is not None else instance)

    def nic(self, instance: str) -> Subject:
        """Return a NIC port from ``device/port``."""
        device, _, port = instance.partition("/")
        return self._subject("nic", nic=device, port=port or None)

    def _subject(self, kind: SubjectType, **more: Any) -> Subject:
        return Subject(
            type=kind,
            cluster=self.cluster,
            node=self.node,
            job_id=self.job_id,
            rack=self.rack,
            switch=self.switch,
            **more,
        )


# A node's samples all come from one place, and making it anew each second costs more than finding it.
_location = lru_cache(maxsize=1 << 16)(Location)


def subject_of(event: NodeEvent) -> Subject:
    """Return what an event is about: a GPU, a NIC port, or the whole node."""
    named = event.subject
    job = named.get("job_id")
    location = Location(event.cluster, event.node, None if job is None else str(job))
    if named.get("gpu_index") is not None:
        return location.gpu(str(named["gpu_index"]))
    if named.get("gpu_uuid"):
        return location.gpu(str(named["gpu_uuid"]))
    if named.get("nic"):
        return location.nic(f"{named['nic']}/{named['port']}" if named.get("port") else str(named["nic"]))
    return location.whole_node()


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a rule argues about a subject: all fields of a suspicion but its state and times."""

    detector: str
    catalogue_id: str
    family: Family
    kind: str
    subject: Subject
    weight: float
    score: float = 1.0
    overwhelming: bool = False
    evidence: tuple[Evidence, ...] = ()
    note: str = ""
    severity: Severity | None = None
    rule_id: str = ""

    def suspicion(
        self, state: State, *, ts: float, onset: float, interval: tuple[float, float] | None = None
    ) -> Suspicion:
        """Return the suspicion raised, refreshed or cleared at ``ts``."""
        lo, hi = interval or (onset, onset)
        return Suspicion(
            cluster=self.subject.cluster,
            detector=self.detector,
            family=self.family,
            kind=self.kind,
            state=state,
            subject=self.subject,
            ts=ts,
            onset=onset,
            onset_lo=lo,
            onset_hi=hi,
            score=self.score,
            log_likelihood_ratio=self.weight,
            overwhelming=self.overwhelming,
            evidence=self.evidence,
            note=self.note,
            severity=self.severity,
            catalogue_id=self.catalogue_id,
            rule_id=self.rule_id,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HangClaim(Claim):
    """A claim that is a vote on a hang of the subject's job; the fields are those of ``HangVote``."""

    signal: HangSignal
    catalogue_id: str = "hang"
    kind: str = "hang.job"
    both_signs: bool = False
    lasting: bool = False
    certain: bool = False
    released: bool = False
    reused: bool = False
    stuck_since: float = 0.0
    resting: bool = False

    def suspicion(
        self, state: State, *, ts: float, onset: float, interval: tuple[float, float] | None = None
    ) -> HangVote:
        """Return the vote raised, refreshed or cleared at ``ts``."""
        suspicion = Claim.suspicion(self, state, ts=ts, onset=onset, interval=interval)
        return HangVote(
            **asdict(suspicion),
            signal=self.signal,
            both_signs=self.both_signs,
            lasting=self.lasting,
            certain=self.certain,
            released=self.released,
            reused=self.reused,
            stuck_since=self.stuck_since,
            resting=self.resting,
        )
