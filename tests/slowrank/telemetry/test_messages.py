"""Messages between stages on the wire: every type survives, has limits, and is read one release back."""

import base64
import contextlib
import json
import math
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slowrank.telemetry import (
    BadRecord,
    Evidence,
    HangVote,
    Heartbeat,
    JobDeclared,
    JobEnded,
    JobNodes,
    LinkDelay,
    LoadedMinute,
    MinuteMeans,
    NodeAnnounced,
    RankPace,
    StageMessage,
    StartupPhase,
    StepsReported,
    Subject,
    Suspicion,
    decode_message,
    decode_steps_or_end,
    encode,
)
from slowrank.telemetry.messages import PhaseName

NOW = 1795160472.0
EXAMPLES: tuple[StageMessage, ...] = (
    Suspicion(
        cluster="c",
        detector="peer_step",
        family="timing",
        kind="straggler.fail_slow",
        state="raise",
        subject=Subject(type="rank", cluster="c", rank=3),
        ts=NOW,
        onset=NOW - 5,
        onset_lo=NOW - 6,
        onset_hi=NOW - 4,
        score=1.5,
        log_likelihood_ratio=9.0,
    ),
    HangVote(
        cluster="c",
        signal="idle",
        detector="quiet",
        family="nic",
        kind="hang.job",
        state="update",
        subject=Subject(type="node", cluster="c", node="n1", job_id="j"),
        ts=NOW,
        onset=NOW - 60,
        onset_lo=NOW - 60,
        onset_hi=NOW - 60,
        score=3.0,
        log_likelihood_ratio=3.0,
        both_signs=True,
        lasting=True,
        catalogue_id="hang",
    ),
    NodeAnnounced(cluster="c", node="n1", job_id="j", rack="r", switch="s", ts=NOW, ports=8),
    MinuteMeans(
        cluster="c",
        node="n1",
        ts=NOW,
        start=NOW - 70,
        samples=60,
        means={"gpu.power_watts": 412.5},
        gpus=("0", "1"),
        of_gpus={"gpu.power_watts": (412.0, 413.0)},
    ),
    MinuteMeans(cluster="c", node="n1", ts=NOW, start=NOW - 70, samples=60, means={"gpu.power_watts": 412.5}),
    LoadedMinute(
        cluster="c",
        node="n1",
        job_id="j",
        ts=NOW,
        start=NOW - 70,
        since=NOW - 65,
        model="NVIDIA H100",
        clock_hz=1.98e9,
        utilization_ratio=0.97,
        limit_watts=700.0,
        held_by="power_cap",
    ),
    Heartbeat(cluster="c", ts=NOW, partition="job-steps:3"),
    LinkDelay(
        cluster="c",
        ts=NOW,
        node="n1",
        peer="n2",
        seconds=2e-5,
        expected_seconds=1e-5,
        nic="mlx5_0",
        via=("l1", "s"),
    ),
    StartupPhase(cluster="c", ts=NOW, node="n1", job_id="j", phase="image", began=NOW - 30, gpus=8),
    RankPace(cluster="c", ts=NOW, node="n1", gpu_index=3, job_id="j", rank=19, log_ratio=0.03, spread=0.01),
    StepsReported(cluster="c", ts=NOW, job_id="j"),
    JobNodes(cluster="c", ts=NOW, job_id="j", nodes=("n1", "n2")),
    JobDeclared(cluster="c", ts=NOW, node="n1", job_id="j", code="job.schedule", message="batch 2048"),
)

XID = (Evidence(metric="xid.79", unit="1", detector="event", value=1.0),)

names = st.text("abz019._:/-", min_size=1, max_size=20)
times = st.floats(1, 4e9)
numbers = st.floats(-1e9, 1e9)
counts = st.integers(0, 2**31)
STRATEGIES: dict[type, st.SearchStrategy[Any]] = {
    str: names,
    float: times,
    int: st.integers(0, 500),
    bool: st.booleans(),
}


def some(message: StageMessage) -> st.SearchStrategy[StageMessage]:
    """Messages of the type of ``message``, each plain field drawn, the others as they are."""
    hints = {f.name: f.type for f in msgspec.structs.fields(message) if f.name != "v"}
    drawn = {name: STRATEGIES[hint] for name, hint in hints.items() if hint in STRATEGIES}
    return st.fixed_dictionaries(drawn).map(lambda changes: msgspec.structs.replace(message, **changes))


def test_examples_hold_one_of_each_type():
    """A new type in the union has to be tried here, too."""
    assert {type(message) for message in EXAMPLES} == set(get_args(StageMessage))


@given(st.one_of([some(message) for message in EXAMPLES]))
def test_every_message_survives_the_wire(message):
    """A message decodes to what was encoded, with its type and version on the wire."""
    assert decode_message(encode(message)) == message
    assert msgspec.msgpack.decode(encode(message))["v"] == 3


@given(st.sampled_from(EXAMPLES), st.data())
def test_damaged_messages_raise_bad_record_only(message, data):
    """Truncated or altered bytes either still make a valid message or raise BadRecord."""
    payload = bytearray(encode(message))
    payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    for damaged in (bytes(payload), bytes(payload[: data.draw(st.integers(0, len(payload)))])):
        with contextlib.suppress(BadRecord):
            decode_message(damaged)


BROKEN: dict[type, list[dict[str, Any]]] = {
    NodeAnnounced: [{"node": ""}, {"rack": "r ack"}, {"ports": -1}, {"job_id": "j" * 129}],
    MinuteMeans: [
        {"node": ""},
        {"start": math.inf},
        {"samples": -1},
        {"means": {f"m{i}": 0.0 for i in range(65)}},
        {"means": {"m" * 129: 0.0}},
        {"gpus": tuple(map(str, range(513))), "of_gpus": {}},
        {"gpus": ("0", "")},
        {"of_gpus": {"gpu.power_watts": (412.0,)}},
        {"of_gpus": {f"m{i}": () for i in range(65)}},
    ],
    LoadedMinute: [
        {"node": ""},
        {"start": math.inf},
        {"since": math.nan},
        {"model": "m" * 4097},
        {"clock_hz": math.nan},
        {"clock_hz": 0.0},
        {"clock_hz": 1e-300},
        {"limit_watts": -1.0},
        {"held_by": "tea"},
    ],
    Heartbeat: [{"partition": ""}, {"partition": "p" * 129}],
    LinkDelay: [
        {"peer": ""},
        {"seconds": 0.0},
        {"seconds": math.nan},
        {"expected_seconds": -1.0},
        {"nic": "a b"},
        {"via": ("a",) * 65},
        {"via": ("",)},
    ],
    StartupPhase: [{"job_id": ""}, {"phase": "tea"}, {"began": math.nan}, {"gpus": -1}, {"attempt": 2**63}],
    RankPace: [
        {"gpu_index": -1},
        {"gpu_index": 512},
        {"rank": 2**20},
        {"log_ratio": math.nan},
        {"spread": math.inf},
    ],
    StepsReported: [{"job_id": ""}, {"job_id": "a b"}],
    JobNodes: [{"job_id": ""}, {"nodes": ("a b",)}, {"nodes": ("n",) * 1001}],
    JobDeclared: [{"job_id": ""}, {"node": "a b"}, {"code": "job.tea"}, {"message": "m" * 100_000}],
    Suspicion: [{"detector": ""}, {"onset": math.nan}, {"catalogue_id": "a b"}, {"rule_id": "r" * 129}],
    HangVote: [{"signal": "tea"}, {"detector": ""}, {"score": math.inf}, {"stuck_since": math.nan}],
}


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda m: type(m).__name__)
def test_messages_beyond_the_limits_are_refused(message):
    """Every type has limits of its own beside those of all: version, cluster and time."""
    of_all: list[dict[str, Any]] = [{"v": 4}, {"cluster": ""}, {"ts": math.nan}]
    for changes in of_all + BROKEN[type(message)]:
        with pytest.raises(BadRecord):
            decode_message(encode(msgspec.structs.replace(message, **changes)))


def test_phases_are_in_the_order_of_a_start():
    """The order is part of the meaning: the slowest phase is looked up by its place."""
    assert get_args(PhaseName)[0] == "image"
    assert get_args(PhaseName)[-1] == "first_step"


def old_bytes(version: int) -> dict[str, bytes]:
    rows = json.loads((Path(__file__).parent / f"messages_v{version}.json").read_text())
    return {row["about"]: base64.b64decode(row["bytes"]) for row in rows}


# Bytes that older versions wrote: suspicions by kind and detector, others of version 2 by their type.
OLD, OLD_2 = old_bytes(1), old_bytes(2)

OF_KIND: dict[str, type] = {
    "hang.job": HangVote,
    "self.delay": LinkDelay,
    "self.pace": RankPace,
    "self.place": NodeAnnounced,
    "self.readings": MinuteMeans,
    "self.watermark": Heartbeat,
    "startup.phase": StartupPhase,
}


@pytest.mark.parametrize("about", sorted(set(OLD) - {"job-steps ended"}))
def test_bytes_of_the_release_before_are_read(about):
    """What stands on the topic when a worker is upgraded comes out as the type that it meant."""
    message = decode_message(OLD[about])
    assert type(message) is OF_KIND.get(about.split()[0], Suspicion)
    assert decode_message(encode(message)) == message
    assert "v" not in msgspec.msgpack.decode(OLD[about])


@pytest.mark.parametrize("about", sorted(set(OLD_2) - {"JobEnded"}))
def test_messages_of_version_2_are_read(about):
    """Suspicions are what they were in version 1, and the others have not changed."""
    examples = {type(message).__name__: message for message in EXAMPLES}
    expected = examples.get(about) or decode_message(OLD[about])
    assert msgspec.msgpack.decode(OLD_2[about])["v"] == 2
    assert decode_message(OLD_2[about]) == expected


@pytest.mark.parametrize(
    ("kind", "detector", "fields", "ids"),
    [
        ("straggler.fail_slow", "peer_step.rest", {}, ("peer_step", "")),
        ("data.loader_slow", "peer_step", {}, ("data_loading", "")),
        ("straggler.job_wide", "peer_step", {"hypotheses": {"congestion": 5.0}}, ("congestion", "")),
        ("straggler.job_wide", "peer_step", {"hypotheses": {"imbalance.stage": 5.0}}, ("stage", "")),
        ("straggler.job_wide", "group_votes", {"hypotheses": {"group": 5.0}}, ("group_votes", "")),
        ("hang.rank_missing", "step_progress", {}, ("rank_missing", "")),
        ("link.flap", "counter.nic.link_downed_total", {}, ("counters", "counter.nic.link_downed_total")),
        ("xid.79", "event.kmsg", {"evidence": XID}, ("events", "event.xid.79")),
        ("exporter.stale", "presence.node", {}, ("gpu_presence", "")),
        ("self.job_memory", "job_memory", {}, ("", "")),
    ],
)
def test_old_suspicions_get_the_ids_of_their_detector_and_rule(kind, detector, fields, ids):
    """Older versions had neither: they follow from source, kind, hypotheses and evidence."""
    old = msgspec.structs.replace(EXAMPLES[0], v=2, kind=kind, detector=detector, **fields)
    message = decode_message(encode(old))
    assert isinstance(message, Suspicion)
    assert (message.catalogue_id, message.rule_id) == ids


@pytest.mark.parametrize(
    ("detector", "fields", "state"),
    [
        ("step_progress", {"score": 0.8, "severity": "info"}, {"signal": "no_progress", "early": True}),
        ("step_progress", {"score": 1.4, "severity": "critical"}, {"signal": "no_progress", "certain": True}),
        ("quiet", {"score": 1.0, "severity": "critical"}, {"signal": "idle", "certain": True}),
        ("quiet", {"score": 2.0}, {"signal": "idle", "both_signs": True}),
        ("quiet", {"score": 3.0}, {"signal": "idle", "both_signs": True, "lasting": True}),
        ("quiet.ended", {"score": 1.0}, {"signal": "left"}),
        ("quiet.ended", {"score": 2.0}, {"signal": "left", "released": True}),
        ("job.ended", {}, {"signal": "ended"}),
        ("job.paused", {}, {"signal": "paused"}),
        ("silence.unheard", {}, {"signal": "no_telemetry"}),
    ],
)
def test_votes_on_a_hang_were_suspicions(detector, fields, state):
    """Source, score and severity said what a vote reports; the score remains a figure of the finding."""
    old = msgspec.structs.replace(EXAMPLES[0], v=2, kind="hang.job", detector=detector, **fields)
    vote = decode_message(encode(old))
    assert isinstance(vote, HangVote)
    states = {"early": False, "certain": False, "both_signs": False, "lasting": False, "released": False}
    assert {name: getattr(vote, name) for name in ("signal", *states)} == states | state
    assert vote.score == fields.get("score", 1.5)
    assert (vote.severity, vote.catalogue_id) == (None, "hang")


def test_old_messages_keep_their_figures():
    """Each figure that stood in a field made for something else is in its own."""
    old = {
        about: (decode_message(data), msgspec.msgpack.decode(data))
        for about, data in OLD.items()
        if about != "job-steps ended"
    }
    delay, was = old["self.delay pairwise"]
    assert isinstance(delay, LinkDelay)
    subject = was["subject"]
    assert (delay.node, delay.peer, delay.nic) == (subject["node"], subject["peer_port"], "mlx5_0")
    assert (delay.seconds, delay.expected_seconds, delay.via) == (2e-5, 2e-5, ())
    pace, was = old["self.pace pace"]
    assert isinstance(pace, RankPace)
    assert (pace.log_ratio, pace.spread) == tuple(was["readings"].values())
    assert (pace.gpu_index, pace.rank) == (was["subject"]["gpu_index"], was["subject"]["rank"])
    place, was = old["self.place places"]
    assert isinstance(place, NodeAnnounced)
    assert (place.ports, place.rack) == (was["evidence"][0]["value"], was["subject"].get("rack"))
    minute, was = old["self.readings gray"]
    assert isinstance(minute, MinuteMeans)
    assert minute.means | {"samples": minute.samples} == was["readings"]
    assert (minute.start, minute.ts, minute.subject.node) == (was["onset"], was["ts"], was["subject"]["node"])
    beat, was = old["self.watermark watermark"]
    assert beat == Heartbeat(cluster="prod-a", ts=NOW, partition="job-steps:3")
    phase, was = old["startup.phase startup.launch"]
    assert isinstance(phase, StartupPhase)
    assert (phase.phase, phase.began, phase.ts, phase.gpus) == (
        "launch",
        was["onset"],
        was["ts"],
        was["gpus"],
    )
    assert (phase.job_id, phase.attempt) == (was["subject"]["job_id"], was["subject"].get("attempt"))


ENDED = JobEnded(cluster="prod-a", ts=NOW - 0.5, job_id="812345", node="gpu-0011", seq=7)


def test_the_end_of_a_job_is_read_in_all_forms():
    """As a message of its own, of this version or version 2, and as the record without rows of version 1."""
    assert decode_steps_or_end(OLD_2["JobEnded"]) == ENDED
    assert decode_steps_or_end(OLD["job-steps ended"]) == ENDED
    assert decode_steps_or_end(encode(ENDED)) == ENDED


@given(st.builds(JobEnded, cluster=names, ts=times, job_id=names, node=names, seq=counts))
def test_the_end_of_a_job_survives_the_wire(ended):
    """It decodes to what was encoded."""
    assert decode_steps_or_end(encode(ended)) == ended


@pytest.mark.parametrize(
    "changes", [{"v": 4}, {"job_id": ""}, {"node": "a b"}, {"ts": math.nan}, {"seq": -1}]
)
def test_ends_beyond_the_limits_are_refused(changes):
    """Names, times and counts have the limits of all records."""
    with pytest.raises(BadRecord):
        decode_steps_or_end(encode(msgspec.structs.replace(ENDED, **changes)))


def test_the_end_of_a_job_keeps_the_window_of_time():
    """Like other records it is too old after a day."""
    with pytest.raises(BadRecord, match="bad_time"):
        decode_steps_or_end(encode(ENDED), now=NOW + 90_000.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "self.pace"},
        {"kind": "self.delay"},
        {"kind": "self.readings", "readings": {"samples": math.inf}},
    ],
)
def test_old_messages_without_their_figures_are_refused(changes):
    """A message of version 1 that lacks what its kind needs is unreadable, and no crash."""
    fields = msgspec.msgpack.decode(OLD["self.unheard silence.unheard"]) | changes
    with pytest.raises(BadRecord, match="undecodable"):
        decode_message(msgspec.msgpack.encode(fields))
