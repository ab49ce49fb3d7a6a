"""Incidents: a rack, switch or rail that fails is one finding, and its members are none of their own."""

import json
import math
import random
from itertools import chain, groupby

import msgspec
import pytest

from alerts.cases.lifecycle import NOTIFIED
from alerts.finding import Finding
from alerts.kinds import UNHEARD_KIND
from simulator import Cluster, ClusterSpec, Fault, JobSpec
from slowrank.telemetry import Evidence, NodeAnnounced, Subject, Suspicion
from slowrank.telemetry.records import Family
from streams.cluster.stage import FindingStage
from streams.pipeline import local_pipeline
from streams.suspicions import Claim, Location
from tests.streams.versions import events_of, versions_of

T0 = 1_795_160_000.0
FAMILIES: dict[str, Family] = {
    "link": "nic",
    "throttle": "clocks",
    "straggler": "timing",
    "exporter": "silence",
    "node": "silence",
    "self": "silence",
}
NODES, PER_RACK, PER_SWITCH, PORTS = 128, 4, 32, 8


def place(i):
    return Location("c", f"n{i:03d}", "j1", f"rack-{i // PER_RACK:02d}", f"leaf-{i // PER_SWITCH}")


def announced(nodes=range(NODES)):
    """What NodeStage says of every labelled node at first sight."""
    return [
        NodeAnnounced(
            cluster="c",
            node=at.node,
            job_id=at.job_id,
            rack=at.rack,
            switch=at.switch,
            ts=T0 + k / 1000,
            ports=PORTS,
        )
        for k, at in enumerate(map(place, nodes))
    ]


def evidence(metric, value):
    return Evidence(metric=metric, unit="1", detector="d", value=float(value))


def said(i, kind, ts, *, nic=None, gpu=None, state="raise", onset=None, **more):
    """One suspicion about node ``i``, about one of its NICs or GPUs where given."""
    at = place(i)
    subject = at.whole_node() if nic is None else at.nic(f"mlx5_{nic}/1")
    subject = subject if gpu is None else at.gpu(str(gpu))
    family = FAMILIES[kind.partition(".")[0]]
    fields = {"weight": 3.0, "overwhelming": False} | more
    claim = Claim(detector=f"d.{kind}", catalogue_id="d", family=family, kind=kind, subject=subject, **fields)
    return claim.suspicion(state, ts=T0 + ts, onset=T0 + (ts if onset is None else onset))


def jitter(nodes, seed=3):
    rng = random.Random(seed)
    return [(i, rng.uniform(0, 0.9)) for i in nodes]


def switch_down(nodes, at=10.0, ports=range(PORTS)):
    return [
        said(i, "link.nic_flap", at + d, nic=p, onset=at, overwhelming=True)
        for i, d in jitter(nodes)
        for p in ports
    ]


def silent(nodes, at=10.0, back=None, spread=1.0):
    """What NodeStage says of nodes that fall silent, and are heard again at ``back``."""
    found = []
    for i, d in jitter(nodes):
        onset = at + d * spread
        raised = {UNHEARD_KIND: math.ceil(onset + 5), "exporter.stale": onset + 10, "node.silent": onset + 30}
        found += [
            said(i, kind, ts, onset=onset, weight=1.0)
            for kind, ts in raised.items()
            if back is None or ts <= back
        ]
        if back is not None:
            found.append(said(i, UNHEARD_KIND, math.ceil(back + d), onset=onset, state="clear"))
            found.append(said(i, "exporter.stale", back + d, onset=onset, state="clear"))
            found.append(said(i, "node.silent", back + d, onset=onset, state="clear"))
    return found


def unplaced(suspicions):
    """The same of nodes that do not say where they stand."""
    return [
        msgspec.structs.replace(s, rack=None, switch=None)
        if isinstance(s, NodeAnnounced)
        else msgspec.structs.replace(s, subject=msgspec.structs.replace(s.subject, rack=None, switch=None))
        for s in suspicions
    ]


def run(*suspicions, until=60, known=True):
    """Return every version that came out, ticking each second."""
    return versions_of(chain(announced() if known else (), *suspicions), start=T0, until=until)


def told(versions):
    """Return (kind, subject) of everything that made news as opened, in order, as notifiers would send it."""
    opened = [f for event, f in events_of(versions) if event in ("opened", "reopened")]
    return [(f.kind, f.subject.node or f.subject.rack or f.subject.switch or f.subject.rail) for f in opened]


def test_a_switch_down_is_one_finding_within_ten_seconds():
    """256 ports of 32 nodes that go down together are one finding about the switch, and the only news."""
    versions = run(switch_down(range(32, 64)))
    assert told(versions) == [("fabric.rail_degraded", "leaf-1")]
    opened = next(f for f in versions if f.kind == "fabric.rail_degraded")
    assert opened.detected_at - (T0 + 10) < 2.0
    last = {f.id: f for f in versions}
    members = [f for f in last.values() if f.kind == "link.nic_flap"]
    assert len(members) == 256
    assert {(f.status, f.group_key) for f in members} == {("suspected", opened.dedup_key)}
    whole = last[opened.id]
    assert set(whole.blast_radius.other_findings) == {f.id for f in members}
    assert (whole.cause.hypothesis, whole.action.code) == ("fabric.rail_degraded", "CHECK_NETWORK")
    assert whole.title == "Switch leaf-1 is degraded"


def test_a_silent_rack_is_one_finding():
    """Four nodes of a rack that fall silent together while no job stops: one finding, of telemetry."""
    versions = run(silent(range(8, 12)))
    assert told(versions) == [("exporter.stale", "rack-02")]
    whole = next(f for f in reversed(versions) if f.subject.type == "rack")
    assert (whole.cause.hypothesis, whole.cause.alternatives) == ("domain", {})
    assert (whole.severity, whole.action.code, whole.action.commands) == ("error", "CHECK_NETWORK", ())


def test_a_silent_switch_is_one_finding():
    """Thirty-two silent nodes under one switch are one finding about the switch, the likely cause."""
    versions = run(silent(range(64, 96)))
    assert told(versions) == [("exporter.stale", "leaf-2")]
    whole = next(f for f in reversed(versions) if f.subject.type == "switch")
    assert (whole.cause.hypothesis, list(whole.cause.alternatives)) == ("fabric.rail_degraded", ["domain"])
    assert whole.title == "No telemetry from switch leaf-2"
    assert whole.action.text.startswith("Check the uplinks of switch leaf-2")


def test_one_rail_of_one_switch():
    """The third port of every node under a switch: the finding names switch and rail."""
    versions = run(switch_down(range(32), ports=[3]))
    assert told(versions) == [("fabric.rail_degraded", "leaf-0")]
    assert [f.title for f in versions if f.status == "open"] == ["Rail 3 of switch leaf-0 is degraded"]


def test_a_rail_of_the_whole_cluster():
    """One port of every node, under all switches, is the rail."""
    assert told(run(switch_down(range(NODES), ports=[5]))) == [("fabric.rail_degraded", "5")]


def test_a_hot_rack_takes_its_slow_ranks_with_it():
    """Throttled GPUs of a rack within a minute, and the ranks they slow, are one finding with their cost."""
    hot = [
        said(i, "throttle.thermal", 10 + 9 * k, gpu=g) for k, i in enumerate(range(4, 8)) for g in range(8)
    ]
    slow = [
        msgspec.structs.replace(
            said(i, "straggler.fail_slow", 40 + k, gpu=g, overwhelming=True, weight=5.0),
            gpus=1024,
            job_slowdown_ratio=1.2,
        )
        for k, i in enumerate(range(4, 8))
        for g in range(8)
    ]
    versions = run(hot, slow)
    assert told(versions) == [("throttle.thermal", "rack-01")]
    whole = next(f for f in reversed(versions) if f.subject.type == "rack")
    assert (whole.job_slowdown_ratio, whole.severity, whole.blast_radius.jobs) == (1.2, "critical", ("j1",))


@pytest.mark.parametrize("count", [2, 4, 8])
def test_concurrent_faults_stay_separate(count):
    """Racks that fall silent, switches that fail and single ports: one finding each."""
    racks = [silent(range(4 * r, 4 * r + 4), at=10.0 + r) for r in range(1, count)]
    switch = switch_down(range(96, 128), at=15.0)
    alone = [said(60, "link.nic_flap", 12.0, nic=2, overwhelming=True)]
    sent = told(run(*racks, switch, alone))
    assert sorted(sent) == sorted(
        [("exporter.stale", f"rack-{r:02d}") for r in range(1, count)]
        + [("fabric.rail_degraded", "leaf-3"), ("link.nic_flap", "n060")]
    )


def test_without_labels_nothing_changes():
    """Nodes that never said where they stand are judged one by one."""
    versions = run(silent(range(8, 12)), known=False)
    assert sorted(told(versions)) == [("exporter.stale", f"n{i:03d}") for i in (8, 9, 10, 11)]


def test_three_of_many_nodes_are_three_findings():
    """Three nodes in three racks of one switch are nobody's domain."""
    assert len(told(run(silent([33, 40, 50])))) == 3


def test_weak_signs_make_no_domain():
    """Ports that all merely carry less, without a second kind of evidence, are no incident."""
    weak = [said(i, "link.nic_slow", 10 + d, nic=3, onset=10, weight=1.5) for i, d in jitter(range(32))]
    assert told(run(weak)) == []


def test_first_member_that_opened_too_early_is_absorbed():
    """A port reported seconds before its switch opens alone, keeps its id, and is resolved as absorbed."""
    early = [said(32, "link.nic_flap", 10.0, nic=0, overwhelming=True)]
    versions = run(early, switch_down(range(33, 64), at=11.5))
    assert told(versions) == [("link.nic_flap", "n032"), ("fabric.rail_degraded", "leaf-1")]
    first = [f for f in versions if f.subject.node == "n032" and f.subject.nic == "mlx5_0"]
    assert len({f.id for f in first}) == 1
    assert (first[-1].status, first[-1].resolved_at is not None) == ("resolved", True)
    assert first[-1].group_key.endswith("leaf-1/fabric.rail_degraded")


def test_recovery_resolves_the_incident_and_a_relapse_keeps_its_id():
    """An incident ends when its members' recovery has held; all of them again is the same finding again."""
    nodes = range(8, 12)
    versions = run(silent(nodes, back=40), silent(nodes, at=1000), until=1100)
    incident = [f for f in versions if f.subject.type == "rack"]
    assert len({f.id for f in incident}) == 1
    assert [status for status, _ in groupby(f.status for f in incident)] == ["open", "resolved", "open"]
    assert incident[-1].occurrences == 2
    assert told(versions) == [("exporter.stale", "rack-02")] * 2


def test_a_single_relapse_is_the_nodes_own():
    """One node of a recovered rack that falls silent again is a finding about that node."""
    nodes = range(8, 12)
    versions = run(silent(nodes, back=40), silent([9], at=1000), until=1100)
    assert told(versions) == [("exporter.stale", "rack-02"), ("exporter.stale", "n009")]


@pytest.mark.parametrize(
    ("dead", "named"),
    [(range(8, 12), ("exporter.stale", "rack-0002")), (range(16, 24), ("exporter.stale", "leaf-0002"))],
)
def test_from_samples_to_one_finding(dead, named):
    """Nodes of a rack or a switch whose samples stop are one finding, end to end from their samples."""
    spec = ClusterSpec(nodes=32, gpus=2, nics=2, nodes_per_switch=8)
    names = {spec.node_name(i) for i in dead}
    pipeline = local_pipeline()
    versions: list[Finding] = []
    for record in Cluster(spec, seed=5).run(45.0):
        if not (record.node in names and record.ts > spec.start + 20):
            versions += pipeline.process(record)
    versions += pipeline.finish()
    assert told(versions) == [named]
    assert next(f for f in versions if f.status == "open").detected_at < spec.start + 20 + 8


@pytest.mark.parametrize(
    ("fault", "shown", "severity"),
    [("exporter_gap", "exporter.stale", "error"), ("node_silent", "node.silent", "critical")],
)
def test_a_rack_of_a_job_is_gone_only_where_its_job_stops(fault, shown, severity):
    """A rack whose exporters fall silent while its job steps on is well; one that stops its job is gone."""
    job = JobSpec(dp=12, pp=1, tp=2, job_id="j", step_seconds=1.0)
    spec = ClusterSpec(nodes=12, gpus=2, nics=2, jobs=(job,), nodes_per_rack=4, nodes_per_switch=32)
    faults = [Fault(kind=fault, node=node, onset=150.0, duration=1e9) for node in range(4)]
    pipeline = local_pipeline()
    versions: list[Finding] = []
    for record in Cluster(spec, seed=5, faults=faults).run(200.0):
        versions += pipeline.process(record)
    versions += pipeline.finish()
    assert told(versions) == [("exporter.stale", "rack-0000")]
    rack = next(f for f in reversed(versions) if f.subject.type == "rack")
    assert (rack.kind, rack.severity, rack.status) == (shown, severity, "open")


def test_a_hot_node_of_a_hot_rack_is_no_finding_of_its_own():
    """Where all ranks of a hot rack's nodes are slow, there is no finding about any of the nodes."""
    hot = [said(i, "throttle.thermal", 10 + k, gpu=g) for k, i in enumerate(range(4, 8)) for g in range(4)]
    slow = [
        msgspec.structs.replace(
            said(i, "straggler.fail_slow", 30, gpu=g, overwhelming=True, weight=5.0),
            nodes=128,
            ranks_on_node=4,
        )
        for i in range(4, 8)
        for g in range(4)
    ]
    assert told(run(hot, slow)) == [("throttle.thermal", "rack-01")]


@pytest.mark.parametrize("seed", range(6))
def test_any_delivery_ends_in_the_same_findings(seed):
    """Order within the lateness, repeats and ticks change nothing in the last version of any finding."""
    rng = random.Random(seed)
    spoken = [
        *announced(),
        *[said(i, "exporter.stale", 22 + d, onset=12 + d, weight=1.0) for i, d in jitter(range(4, 8))],
        *[said(i, "exporter.stale", 60, onset=12, state="clear") for i in range(4, 8)],
        *switch_down(range(32, 64), at=20, ports=[0, 1]),
        said(100, "throttle.thermal", 30, gpu=1, overwhelming=True),
    ]
    straight = _final(sorted(spoken, key=lambda s: s.ts))
    late = sorted(spoken, key=lambda s: s.ts + rng.uniform(0, 60))
    assert _final([*late, *rng.sample(late, 40)], rng) == straight


def _versions(suspicions, rng=None):
    stage = FindingStage()
    versions: list[Finding] = []
    seen = T0
    for s in suspicions:
        versions += stage.process(s)
        seen = max(seen, s.ts)
        if rng is not None and rng.random() < 0.05:
            versions += stage.tick(seen)
    for at in (100, 1000, 100_000, 400_000):
        versions += stage.tick(T0 + at)
    return versions


def _final(suspicions, rng=None):
    versions = _versions(suspicions, rng)
    ever_open = {f.id: f for f in versions if f.status in NOTIFIED}
    assert len([f for f in ever_open.values() if f.subject.type in ("rack", "switch")]) == 3
    return _texts(versions)


def _texts(versions, *, nameless=False):
    """Return the last versions; without the id of an outage, which is kept from when it was first shown."""
    last = {f.id: f.to_json() for f in versions}
    texts = [
        text | {"id": ""} if nameless and text["kind"] == "self.telemetry_gap" else text
        for _, text in sorted(last.items())
    ]
    return json.dumps(sorted(texts, key=lambda text: (text["kind"], text["id"])), sort_keys=True)


EVERY_THIRD = range(0, NODES, 3)


@pytest.mark.parametrize("labels", [True, False])
@pytest.mark.parametrize("spread", [0.1, 1.0, 4.0])
def test_many_silent_nodes_are_one_telemetry_fault(labels, spread):
    """A third of the nodes silent within seconds is the telemetry path: one finding, none about a node."""
    said = [*announced(), *silent(EVERY_THIRD, back=100, spread=spread)]
    versions = run(said if labels else unplaced(said), until=500, known=False)
    assert told(versions) == [("self.telemetry_gap", None)]
    gap = [f for f in versions if f.kind == "self.telemetry_gap"]
    assert gap[0].detected_at - (T0 + 10) < 11
    assert T0 + 10 <= gap[0].onset <= T0 + 10 + spread
    assert gap[-1].status == "resolved"
    assert {f.status for f in versions if f.subject.node} <= {"suspected", "resolved"}


def test_each_cluster_is_judged_by_itself():
    """An outage of one cluster says nothing about another."""
    elsewhere = [msgspec.structs.replace(s, cluster="d") for s in announced()] + [
        msgspec.structs.replace(s, cluster="d", subject=msgspec.structs.replace(s.subject, cluster="d"))
        for s in silent([5])
    ]
    versions = run(silent(EVERY_THIRD), elsewhere)
    opened = {(f.subject.cluster, f.kind, f.subject.node) for f in versions if f.status == "open"}
    assert opened == {("c", "self.telemetry_gap", None), ("d", "exporter.stale", "n005")}


def test_a_fifth_of_the_nodes_is_not_many():
    """Up to a fifth of the nodes, and two of any number, are so many nodes."""
    assert len(told(run(silent(range(0, NODES, 6))))) == len(range(0, NODES, 6))
    few = [*announced(range(4)), *silent([0, 2])]
    assert sorted(told(run(few, known=False))) == [("exporter.stale", "n000"), ("exporter.stale", "n002")]


def test_silence_spread_over_a_minute_is_no_outage():
    """Nodes that fall silent one after the other are findings of their own, however many they are."""
    one_by_one = [s for k, i in enumerate(EVERY_THIRD) for s in silent([i], at=10.0 + 4 * k)]
    assert len(told(run(one_by_one, until=250))) == len(EVERY_THIRD)


def test_most_of_the_cluster_is_the_site_and_not_its_racks():
    """When more racks are dark than not, none of them is named but in the evidence."""
    versions = run(silent(range(0, 80)))
    assert told(versions) == [("exporter.stale", None)]
    whole = next(f for f in versions if f.subject.type == "site")
    assert (whole.title, whole.severity) == ("No telemetry from cluster c", "error")
    assert whole.action.code == "CHECK_NETWORK"
    assert "dark: rack rack-00" in whole.evidence[0].note
    causes = {whole.cause.hypothesis, *whole.cause.alternatives}
    assert causes == {"domain", "fabric.rail_degraded", "self"}


def test_a_switch_that_is_most_of_the_cluster_is_named():
    """Four in five nodes stand behind one switch: it is named, and not the telemetry."""
    versions = run(announced(range(40)), silent(range(32)), known=False)
    assert told(versions) == [("exporter.stale", "leaf-0")]


@pytest.mark.slow
def test_places_that_fall_dark_one_by_one_become_the_site():
    """A switch opens first; when the last node is silent too, the site takes its place."""
    everyone = [silent(range(32 * k, 32 * k + 32), at=10.0 + 2.5 * k, back=300) for k in range(4)]
    versions = run(*everyone, until=700)
    opened = [f.subject.type for event, f in events_of(versions) if event == "opened"]
    assert opened[-1] == "site"
    last = {f.id: f for f in versions}.values()
    assert {f.status for f in last if f.subject.type in ("switch", "rack", "site")} == {"resolved"}
    at_end = {f.id: f for f in run(*everyone, until=100)}.values()
    assert [f.subject.type for f in at_end if f.status == "open"] == ["site"]


def test_a_node_that_stays_silent_when_a_small_site_is_back_is_its_own():
    """Four nodes are gone, three come back: the fourth is a finding of its own."""
    few = [*announced(range(4)), *silent(range(3), back=60), *silent([3])]
    versions = run(few, known=False, until=500)
    assert told(versions) == [("exporter.stale", None), ("exporter.stale", "n003")]
    last = {f.id: f for f in versions}.values()
    assert [f.status for f in last if f.subject.type == "site"] == ["resolved"]


def test_who_stays_silent_after_an_outage_is_told_of():
    """The nodes that do not come back with the others are findings of their own, soon after."""
    back = [i for i in EVERY_THIRD if i not in (30, 63)]
    versions = run(silent(back, back=100), silent([30, 63]), until=130)
    assert told(versions) == [
        ("self.telemetry_gap", None),
        ("exporter.stale", "n030"),
        ("exporter.stale", "n063"),
    ]
    last = {f.id: f for f in run(silent(back, back=100), silent([30, 63]), until=500)}.values()
    assert [f.status for f in last if f.kind == "self.telemetry_gap"] == ["resolved"]
    assert {f.subject.node for f in last if f.status == "open"} == {"n030", "n063"}


def test_who_is_announced_is_heard_again():
    """An outage ends also when nobody knows any more that its nodes were silent, after a restart."""
    again = [msgspec.structs.replace(s, ts=s.ts + 120) for s in announced()]
    versions = run(silent(EVERY_THIRD), again, until=500)
    gap = [f for f in versions if f.kind == "self.telemetry_gap"]
    assert [status for status, _ in groupby(f.status for f in gap)] == ["open", "resolved"]


def test_another_silent_node_during_an_outage_is_told_of():
    """One that falls silent a minute later than the many is no part of it."""
    versions = run(silent(EVERY_THIRD, back=300), silent([40], at=80), until=120)
    assert told(versions) == [("self.telemetry_gap", None), ("exporter.stale", "n040")]


def test_a_node_that_was_stale_before_the_outage_is_absorbed():
    """The first of them may be told of before there are many; it keeps its id and is resolved."""
    late = silent([i for i in EVERY_THIRD if i], at=17)
    versions = run(unplaced([*announced(), *silent([0]), *late]), known=False)
    assert told(versions) == [("exporter.stale", "n000"), ("self.telemetry_gap", None)]
    first = [f for f in versions if f.subject.node == "n000" and f.kind == "exporter.stale"]
    assert len({f.id for f in first}) == 1
    assert first[-1].status == "resolved"
    assert first[-1].group_key.endswith("self.telemetry_gap")


def test_a_rack_beside_an_outage_keeps_its_finding():
    """A rack that went dark before is a rack, whatever happens to the others later."""
    others = [i for i in EVERY_THIRD if i not in range(8, 12)]
    versions = run(silent(range(8, 12)), silent(others, at=40), until=80)
    assert told(versions) == [("exporter.stale", "rack-02"), ("self.telemetry_gap", None)]


def test_nodes_announced_late_are_known():
    """A partition may be read minutes of event time after the others: its nodes are part of the cluster."""
    stage = FindingStage()
    prompt, late = announced(range(0, NODES, 2)), announced(range(1, NODES, 2))
    again = [msgspec.structs.replace(s, ts=s.ts + 150) for s in prompt]
    versions = [f for s in (*prompt, *again) for f in stage.process(s)] + list(stage.tick(T0 + 300))
    for s in (*late, *silent(range(NODES), at=310)):
        versions += stage.process(s)
    versions += [f for second in range(301, 400) for f in stage.tick(T0 + second)]
    assert told(versions) == [("exporter.stale", None)]
    last = {f.dedup_key: f for f in versions if f.kind == "exporter.stale" and f.subject.node}
    assert len(last) == NODES
    assert {f.group_key for f in last.values()} == {"c/site/-/node.silent"}


def test_an_old_announcement_moves_no_node_back():
    """What was said of a node's place since then holds."""
    stage = FindingStage()
    moved = [s for s in announced() if s.rack == "rack-02"]
    before = [msgspec.structs.replace(s, ts=T0 - 60, rack="rack-99") for s in moved]
    versions = [f for s in announced() for f in stage.process(s)] + list(stage.tick(T0 + 200))
    for s in (*before, *silent(range(8, 12), at=210)):
        versions += stage.process(s)
    versions += [f for second in range(201, 260) for f in stage.tick(T0 + second)]
    assert told(versions) == [("exporter.stale", "rack-02")]


@pytest.mark.parametrize("seed", range(4))
def test_any_delivery_of_an_outage_ends_in_the_same_findings(seed):
    """Order within the lateness, repeats and ticks change nothing about an outage either."""
    rng = random.Random(seed)
    spoken = [*announced(), *silent(EVERY_THIRD, back=90, spread=4.0), *silent([40, 41], at=20)]
    straight = _versions(sorted(spoken, key=lambda s: s.ts))
    late = sorted(spoken, key=lambda s: s.ts + rng.uniform(0, 60))
    again = _versions([*late, *rng.sample(late, 40)], rng)
    assert len({f.id for f in straight if f.kind == "self.telemetry_gap"}) == 1
    assert _texts(again, nameless=True) == _texts(straight, nameless=True)
    in_time = _versions(sorted(late, key=lambda s: s.ts), rng)
    assert _texts(in_time) == _texts(straight)


def test_subjects_carry_rack_and_switch():
    """What a labelled node says carries where it stands."""
    assert (place(40).nic("mlx5_1/1").rack, place(40).nic("mlx5_1/1").switch) == ("rack-10", "leaf-1")
    assert isinstance(said(1, "node.silent", 1.0), Suspicion)
    assert Subject(type="rack", cluster="c", rack="r").switch is None
