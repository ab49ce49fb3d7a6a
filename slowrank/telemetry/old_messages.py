"""Messages of versions 1 and 2: read for one release, then this module is deleted.

Those of version 1 were all suspicions: ``kind`` was the type of a message, and its data stood in fields made
for something else. In neither version a suspicion had the ids of its detector and rule, and votes on a hang
were suspicions whose detector, score and severity encoded what they report.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from slowrank.telemetry.messages import (
    MESSAGE_VERSION,
    HangSignal,
    HangVote,
    Heartbeat,
    JobEnded,
    LinkDelay,
    MinuteMeans,
    NodeAnnounced,
    RankPace,
    StageMessage,
    StartupPhase,
    Suspicion,
)
from slowrank.telemetry.records import JobSteps

_SAMPLES = "samples"
_ENDED = {"phase": "ended"}


class OldMessage(Suspicion, frozen=True, kw_only=True, tag=False, tag_field=None):
    """A suspicion as version 1 had it; ``readings`` are values by metric."""

    v: int = 1
    readings: dict[str, float] = msgspec.field(default_factory=dict)


def upgraded(old: OldMessage) -> StageMessage:
    """Return the message that ``old`` stands for. Raises ``msgspec.ValidationError``."""
    message, fields = _BY_KIND.get(old.kind, _suspicion)(old)
    # Counts were floats: those without a fraction are taken.
    return of_version_2(msgspec.convert({"cluster": old.cluster} | fields, message, strict=False))


def of_version_2(old: StageMessage) -> StageMessage:
    """Return the message that one of version 2 stands for."""
    if not isinstance(old, Suspicion):
        return msgspec.structs.replace(old, v=MESSAGE_VERSION)
    new = msgspec.structs.replace(old, v=MESSAGE_VERSION, **_ids(old))
    return _hang_vote(new) if new.kind == "hang.job" else new


def job_end(record: JobSteps) -> JobEnded | None:
    """Return the end of a job where a record of version 1 means it: it has its label and no rows."""
    if record.rows or record.labels != _ENDED:
        return None
    return JobEnded(
        cluster=record.cluster, ts=record.ts, job_id=record.job_id, node=record.node, seq=record.seq
    )


_Made = tuple[type[StageMessage], dict[str, Any]]


def _suspicion(old: OldMessage) -> _Made:
    names = [name for name in Suspicion.__struct_fields__ if name not in ("v", "cluster")]
    return Suspicion, {name: getattr(old, name) for name in names}


def _hang_vote(old: Suspicion) -> HangVote:
    signal = _SIGNALS.get(old.detector, "no_progress")
    fields = {name: getattr(old, name) for name in old.__struct_fields__ if name != "severity"}
    return HangVote(
        **fields,
        signal=signal,
        early=signal == "no_progress" and old.score < 1.0,
        certain=old.severity == "critical",
        both_signs=signal == "idle" and old.score >= 2.0,
        lasting=signal == "idle" and old.score >= 3.0,
        released=signal == "left" and old.score >= 2.0,
    )


def _ids(old: Suspicion) -> dict[str, str]:
    prefix = old.detector.partition(".")[0]
    rule = old.detector if prefix in ("counter", "state", "change") else ""
    if prefix == "event" and old.evidence:
        rule = f"event.{old.evidence[0].metric}"
    return {"catalogue_id": _catalogue_id(old, prefix), "rule_id": rule}


def _catalogue_id(old: Suspicion, prefix: str) -> str:
    if old.kind in _ID_OF_KIND:
        return _ID_OF_KIND[old.kind]
    if old.kind == "straggler.job_wide" and old.detector == "peer_step":
        return next((name for cause, name in _ID_OF_CAUSE.items() if cause in old.hypotheses), "workload")
    return _ID_OF_PREFIX.get(prefix, prefix)


def _heartbeat(old: OldMessage) -> _Made:
    return Heartbeat, {"ts": old.ts, "partition": old.note}


def _of_node(old: OldMessage) -> dict[str, Any]:
    node = old.subject
    return {
        "ts": old.ts,
        "node": node.node,
        "job_id": node.job_id,
        "rack": node.rack,
        "switch": node.switch,
    }


def _node_announced(old: OldMessage) -> _Made:
    return NodeAnnounced, _of_node(old) | {"ports": next((e.value for e in old.evidence), 0)}


def _minute_means(old: OldMessage) -> _Made:
    means = {name: value for name, value in old.readings.items() if name != _SAMPLES}
    samples = old.readings.get(_SAMPLES, 0.0)
    return MinuteMeans, _of_node(old) | {"start": old.onset, "samples": samples, "means": means}


def _link_delay(old: OldMessage) -> _Made:
    measured = next(iter(old.evidence), None)
    return LinkDelay, {
        "ts": old.ts,
        "node": old.subject.node,
        "peer": old.subject.peer_port,
        "seconds": measured and measured.value,
        "expected_seconds": measured and measured.baseline and measured.baseline.median,
        "nic": old.subject.nic,
        "via": tuple(hop for hop in measured.note.split("/") if hop) if measured else (),
        "shadow": old.shadow,
    }


def _startup_phase(old: OldMessage) -> _Made:
    return StartupPhase, {
        "ts": old.ts,
        "node": old.subject.node,
        "job_id": old.subject.job_id,
        "attempt": old.subject.attempt or 0,
        "phase": old.detector.removeprefix("startup."),
        "began": old.onset,
        "gpus": old.gpus,
        "shadow": old.shadow,
    }


def _rank_pace(old: OldMessage) -> _Made:
    gpu = old.subject
    return RankPace, {
        "ts": old.ts,
        "node": gpu.node,
        "gpu_index": gpu.gpu_index,
        "job_id": gpu.job_id,
        "rank": gpu.rank,
        "log_ratio": old.readings.get("pace.log_ratio"),
        "spread": old.readings.get("pace.log_spread"),
    }


_BY_KIND: Mapping[str, Callable[[OldMessage], _Made]] = MappingProxyType(
    {
        "self.watermark": _heartbeat,
        "self.place": _node_announced,
        "self.readings": _minute_means,
        "self.delay": _link_delay,
        "startup.phase": _startup_phase,
        "self.pace": _rank_pace,
    }
)

_SIGNALS: Mapping[str, HangSignal] = MappingProxyType(
    {
        "quiet": "idle",
        "quiet.ended": "left",
        "job.ended": "ended",
        "job.paused": "paused",
        "silence.unheard": "no_telemetry",
    }
)
_ID_OF_KIND = {
    "hang.job": "hang",
    "hang.rank_missing": "rank_missing",
    "data.loader_slow": "data_loading",
    "job.planned": "events",
}
_ID_OF_CAUSE = {
    "imbalance.stage": "stage",
    "imbalance.workload": "workload",
    "data": "shared_wait",
    "unmeasured": "shared_wait",
    "congestion": "congestion",
}
_ID_OF_PREFIX = {
    "counter": "counters",
    "state": "states",
    "event": "events",
    "change": "level_changes",
    "presence": "gpu_presence",
    "exporter": "silence",
    "port": "waiting_ports",
    "job_memory": "",
}
