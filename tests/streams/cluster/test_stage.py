"""FindingStage as a stage: order, repeats, ticks and the life of a finding end to end."""

import json
from itertools import pairwise

import msgspec
import pytest

from alerts.config import FindingConfig
from alerts.finding import Finding
from alerts.notify import NotifiedState, event_of
from slowrank.telemetry import Evidence, HangVote, Lost, NodeEvent, Peers, Subject, Suspicion
from streams.cluster.stage import FindingStage
from streams.pipeline import local_pipeline

T0 = 1_795_160_000.0
RANK = Subject(type="rank", cluster="c", node="n1", gpu_index=5, rank=13, job_id="j1")
GPU = Subject(type="gpu", cluster="c", node="n1", gpu_index=5)
PEERS = Peers(group="all", n=15, p05=0.98, median=1.0, p95=1.02, rank_of_subject=16)
COMPUTE = Evidence(metric="compute_seconds", unit="s", detector="peer_step", value=1.3, peers=PEERS)
CLOCK = Evidence(metric="gpu.clock.sm_hz", unit="Hz", detector="bocpd", value=1.1e9)


def slow(ts=10.0, *, subject=RANK, state="raise", **changes):
    fields = {
        "cluster": "c",
        "detector": "peer_step",
        "family": "timing",
        "kind": "straggler.fail_slow",
        "state": state,
        "subject": subject,
        "ts": T0 + ts,
        "onset": T0 + 5,
        "onset_lo": T0 + 4,
        "onset_hi": T0 + 6,
        "score": 2.0,
        "log_likelihood_ratio": 5.0,
        "slowdown_ratio": 1.3,
        "job_slowdown_ratio": 1.3,
        "gpus": 16,
        "ranks": 16,
        "nodes": 2,
        "evidence": (COMPUTE,),
    }
    fields |= changes
    if "lost" not in fields and fields["gpus"] and fields["kind"] != "hang.job":
        # The job's loss since the onset, and nothing any more once it is over.
        rate = (
            fields["gpus"] * (1 - 1 / fields["job_slowdown_ratio"]) if fields["job_slowdown_ratio"] else 0.0
        )
        seconds = max(fields["ts"] - fields["onset"], 0.0)
        fields["lost"] = Lost(gpu_seconds=rate * seconds, gpus=0.0 if state == "clear" else rate)
    return HangVote(**fields) if "signal" in fields else Suspicion(**fields)


def hot(ts=12.0, *, state="raise", **changes):
    fields = {
        "detector": "bocpd",
        "family": "clocks",
        "kind": "throttle.thermal",
        "log_likelihood_ratio": 3.0,
        "slowdown_ratio": None,
        "job_slowdown_ratio": None,
        "gpus": 0,
        "evidence": (CLOCK,),
        "subject": GPU,
    }
    return slow(ts, state=state, **(fields | changes))


def run(*suspicions, until=20.0, config=None):
    """Return the last version of every finding, by kind and subject, after all suspicions and a tick."""
    stage = FindingStage(config)
    versions: list[Finding] = []
    for s in suspicions:
        versions += stage.process(s)
    versions += stage.tick(T0 + until)
    return {(f.kind, f.subject.type): f for f in versions}, versions


POWER = {"detector": "change.gpu.power_watts", "family": "clocks", "evidence": (CLOCK,)}


@pytest.mark.parametrize(("weight", "expected"), [(1.0, T0 + 5), (6.0, T0 - 20)])
def test_who_says_less_does_not_date_a_finding_anew(weight, expected):
    """A change of power that began long before belongs to the slow rank only as far as it says more."""
    before = {"onset": T0 - 20, "onset_lo": T0 - 21, "onset_hi": T0 - 20}
    last, _ = run(slow(overwhelming=True), slow(40, log_likelihood_ratio=weight, **POWER, **before), until=50)
    assert last["straggler.fail_slow", "rank"].onset == expected


def test_weak_suspicion_alone_is_suspected():
    """One family below overwhelming is visible and not open."""
    last, _ = run(slow())
    assert last["straggler.fail_slow", "rank"].status == "suspected"


def test_a_clock_lock_that_comes_back_has_its_node_drained():
    """The first time the command that releases it is enough."""
    low = {"kind": "clock.low", "log_likelihood_ratio": 2.0}
    first = [slow(overwhelming=True), hot(**low)]
    over = [slow(40, state="clear"), hot(40, state="clear", **low)]
    again = {"onset": T0 + 90, "onset_lo": T0 + 90, "onset_hi": T0 + 90}
    back = [slow(100, overwhelming=True, **again), hot(100, **low, **again)]
    found = [run(*s, until=120)[0]["straggler.fail_slow", "rank"] for s in (first, [*first, *over, *back])]
    assert [f.cause.hypothesis for f in found] == ["clock.low"] * 2
    assert [f.action.code for f in found] == ["RUN_DIAG", "DRAIN_NODE"]
    assert found[0].action.commands == ("nvidia-smi --id=5 --reset-gpu-clocks  # on n1",)
    assert found[1].action.commands[1] == "kubectl cordon n1"


def late(ts, onset, *, kind="clock.low", family="clocks", **changes):
    """What the hardware shows of a GPU by itself."""
    dates = {"onset": T0 + onset, "onset_lo": T0 + onset, "onset_hi": T0 + onset}
    return hot(ts, kind=kind, family=family, overwhelming=True, **dates, **changes)


NARROW = {"kind": "link.pcie_downgrade", "family": "nvlink_pcie", "log_likelihood_ratio": 4.0}
OTHER_GPU = Subject(type="gpu", cluster="c", node="n1", gpu_index=4)
OF_NODE = Subject(type="node", cluster="c", node="n1")
OVER = slow(60, state="clear")


@pytest.mark.parametrize(
    ("hardware", "cause", "own"),
    [
        ([late(110, 100)], "clock.low", []),
        ([late(110, 100, **NARROW)], "link.pcie_downgrade", []),
        # Long after the finding or after its end, on another GPU, on all of the node, or fatal.
        ([late(200, 190)], "straggler.fail_slow", ["clock.low"]),
        ([OVER, late(110, 100)], "straggler.fail_slow", ["clock.low"]),
        ([late(110, 100, subject=OTHER_GPU)], "straggler.fail_slow", ["clock.low"]),
        ([late(110, 100, subject=OF_NODE)], "straggler.fail_slow", ["clock.low"]),
        ([late(110, 100, kind="xid.79", family="event")], "straggler.fail_slow", ["xid.79"]),
        # Of another class than what has explained it, at once or late.
        ([late(12, 10), late(110, 100, **NARROW)], "clock.low", ["link.pcie_downgrade"]),
        ([late(90, 80), late(110, 100, **NARROW)], "clock.low", ["link.pcie_downgrade"]),
        ([late(12, 10), late(110, 100, kind="throttle.thermal")], "throttle.thermal", []),
    ],
)
def test_what_a_slow_gpu_shows_soon_after_it_was_found_is_why(hardware, cause, own):
    """Within two minutes it is evidence of the finding; what is no part of it is a finding of its own."""
    _, versions = run(slow(overwhelming=True), *hardware, until=250)
    last = {f.dedup_key: f for f in versions}.values()
    [found] = [f for f in last if f.kind == "straggler.fail_slow"]
    assert found.cause.hypothesis == cause
    assert [f.kind for f in last if f.group_key is None and f.status == "open" and f is not found] == own


def test_overwhelming_source_opens_alone():
    """An overwhelming source opens the finding at its own event time."""
    last, versions = run(slow(overwhelming=True))
    finding = last["straggler.fail_slow", "rank"]
    assert (finding.status, finding.detected_at, len(versions)) == ("open", T0 + 10, 1)
    assert finding.gpu_hours_lost_per_hour == pytest.approx(16 * (1 - 1 / 1.3), abs=1e-4)
    assert finding.cause.hypothesis == "straggler.fail_slow"


def test_second_family_on_the_gpu_corroborates_and_explains():
    """Slow compute and a thermal throttle of the same GPU are one open finding with that cause."""
    last, _ = run(slow(), hot())
    finding = last["straggler.fail_slow", "rank"]
    assert (finding.status, finding.detected_at) == ("open", T0 + 12)
    assert finding.cause.hypothesis == "throttle.thermal"
    assert finding.severity == "critical"
    assert finding.action.code == "HARDWARE_INSPECTION"
    assert [e.metric for e in finding.evidence] == ["gpu.clock.sm_hz", "compute_seconds"]
    thermal = last["throttle.thermal", "gpu"]
    assert (thermal.status, thermal.group_key) == ("suspected", finding.dedup_key)


def test_another_gpu_of_the_node_is_no_witness():
    """A throttle on GPU 6 says nothing about the rank on GPU 5."""
    other = msgspec.structs.replace(hot(), subject=msgspec.structs.replace(GPU, gpu_index=6))
    last, _ = run(slow(), other)
    assert last["straggler.fail_slow", "rank"].status == "suspected"


def test_same_findings_in_any_order_and_with_repeats():
    """Interleaving the detectors differently and repeating everything ends in the same bytes."""
    timing = [slow(10), slow(14, state="update"), slow(18, state="update")]
    clocks = [hot(12), hot(16, state="update")]
    straight, _ = run(*timing, *clocks)
    mixed, _ = run(clocks[0], timing[0], clocks[1], *timing, *clocks, *timing)
    assert _bytes(straight) == _bytes(mixed)


def _bytes(last):
    return json.dumps([f.to_json() for _, f in sorted(last.items())], sort_keys=True)


def test_recovery_held_resolves():
    """A cleared finding is resolved when the recovery has held, at the deadline's own time."""
    last, _ = run(slow(overwhelming=True), slow(100, state="clear"), until=1000)
    finding = last["straggler.fail_slow", "rank"]
    assert (finding.status, finding.resolved_at) == ("resolved", T0 + 100 + 300)


def test_relapse_within_a_day_keeps_the_id():
    """A relapse reopens the same finding and counts one more occurrence."""
    stage = FindingStage()
    first = slow(overwhelming=True)
    again = slow(5000, overwhelming=True, onset=T0 + 4990)
    versions: list[Finding] = []
    for s in (first, slow(100, state="clear")):
        versions += stage.process(s)
    versions += stage.tick(T0 + 1000)
    versions += [*stage.process(again), *stage.tick(T0 + 5000)]
    assert {f.id for f in versions} == {versions[0].id}
    assert [f.status for f in versions] == ["open", "open", "resolved", "open"]
    assert versions[-1].occurrences == 2


def test_a_page_begins_with_the_command_that_keeps_other_jobs_away():
    """A critical finding about a machine has its drain commands, though diagnostics are what it asks for."""
    first, _ = run(slow(overwhelming=True))
    assert first["straggler.fail_slow", "rank"].severity == "error"
    # At 1.3x it has cost half a minute after a hundred seconds.
    last, _ = run(slow(overwhelming=True), slow(110, state="update", overwhelming=True), until=110)
    found = last["straggler.fail_slow", "rank"]
    assert (found.severity, found.action.code) == ("critical", "RUN_DIAG")
    assert [command.split()[0] for command in found.action.commands] == ["scontrol", "kubectl"]
    assert found.action.text.startswith("Drain n1: no other job starts there")


def three_ranks(**changes):
    return slow_ranks(3, **changes)


def slow_ranks(number, **changes):
    ranks = [msgspec.structs.replace(RANK, rank=i, gpu_index=i) for i in range(number)]
    return run(*(slow(10, subject=r, overwhelming=True, **changes) for r in ranks))


@pytest.mark.parametrize("kind", ["straggler.fail_slow", "straggler.intermittent"])
def test_nearly_all_ranks_of_a_node_are_one_finding(kind):
    """Three of its four ranks that slow down together, for good or on and off, make one finding about the
    node."""
    last, versions = three_ranks(ranks_on_node=4, kind=kind)
    assert [f.subject.type for f in versions if f.status == "open"] == ["node"]
    assert last[kind, "rank"].group_key == last[kind, "node"].dedup_key


@pytest.mark.parametrize("kind", ["straggler.fail_slow", "data.loader_slow"])
def test_both_ranks_that_a_job_has_on_a_node_are_one_finding(kind):
    """It works on two GPUs there, and on other nodes; of four, two are no node."""
    last, versions = slow_ranks(2, ranks_on_node=2, kind=kind)
    assert [f.subject.type for f in versions if f.status == "open"] == ["node"]
    assert last[kind, "rank"].group_key == last[kind, "node"].dedup_key
    _, versions = slow_ranks(2, ranks_on_node=4, kind=kind)
    assert [f.subject.rank for f in versions if f.status == "open"] == [0, 1]


def test_a_node_is_slow_since_its_middle_rank_is():
    """One rank was in trouble before the others, another is dated late: neither dates it, nor a relapse."""
    ranks = [msgspec.structs.replace(RANK, rank=i, gpu_index=i) for i in range(3)]
    since = [T0 + 1.0, T0 + 5.0, T0 + 6.0]
    told = [slow(10, subject=r, overwhelming=True, ranks_on_node=4) for r in ranks]
    told = [msgspec.structs.replace(s, onset=at) for s, at in zip(told, since, strict=True)]
    well = [msgspec.structs.replace(s, state="clear", ts=T0 + 100) for s in told]
    again = [msgspec.structs.replace(s, ts=T0 + 200 + k, onset=T0 + 197) for k, s in enumerate(told[1:])]
    _, versions = run(*told, *well, *again, until=300)
    onsets = {f.onset for f in versions if f.subject.type == "node"}
    assert onsets == {since[1]}


@pytest.mark.parametrize(("ratio", "is_part"), [(1.1, True), (1.5, False)])
def test_a_rank_that_was_slow_before_its_node_is_part_of_it_if_no_slower(ratio, is_part):
    """Its node slows down gradually, and the others show it 20 minutes later; more than that is its own."""
    ranks = [msgspec.structs.replace(RANK, rank=i, gpu_index=i) for i in range(4)]
    shown = {"overwhelming": True, "ranks_on_node": 4}
    first = slow(10, subject=ranks[0], slowdown_ratio=ratio, **shown)
    later = {"onset": T0 + 1200, "onset_lo": T0 + 1195, "onset_hi": T0 + 1205, "slowdown_ratio": 1.1}
    still = msgspec.structs.replace(first, ts=T0 + 1210)
    others = (slow(1210, subject=r, **shown, **later) for r in ranks[1:])
    last, versions = run(first, *others, still, until=1400)
    node = last["straggler.fail_slow", "node"]
    of_first = [f.group_key for f in versions if f.subject.rank == 0][-1]
    assert (node.status, of_first == node.dedup_key) == ("open", is_part)


def test_a_node_that_is_slow_on_and_off_stays_one_finding():
    """Its ranks recover and become slow again, one a second before the others: all of it is the node's."""
    ranks = [msgspec.structs.replace(RANK, rank=i, gpu_index=i) for i in range(3)]
    told: list[Suspicion] = []
    for k, r in enumerate(ranks):
        said = slow(10, subject=r, overwhelming=True, ranks_on_node=4)
        again = {"state": "raise", "ts": T0 + 200 + min(k, 1), "onset": T0 + 197}
        told += [said, msgspec.structs.replace(said, state="clear", ts=T0 + 100)]
        told += [msgspec.structs.replace(said, **again)]
    _, versions = run(*sorted(told, key=lambda s: s.ts), until=300)
    assert {(f.subject.type, f.occurrences) for f in versions if f.status == "open"} == {("node", 1)}
    assert [f.status for f in versions if f.subject.type == "node"][-1] == "open"


def test_one_rank_of_a_recovered_node_is_one_finding():
    """The others stay well: it is held back for half as long as it took to be found, and then named."""
    ranks = [msgspec.structs.replace(RANK, rank=i, gpu_index=i) for i in range(3)]
    first = [slow(10, subject=r, overwhelming=True, ranks_on_node=4) for r in ranks]
    well = [msgspec.structs.replace(s, state="clear", ts=T0 + 100) for s in first]
    again = [msgspec.structs.replace(first[0], ts=T0 + 200 + k, onset=T0 + 190) for k in (0, 10)]
    _, versions = run(*first, *well, *again, until=230)
    opened = [f for f in versions if f.status == "open" and f.subject.type == "rank"]
    assert {(f.subject.rank, f.detected_at - T0) for f in opened} == {(0, 205.0)}


@pytest.mark.parametrize(
    "changes", [{"ranks_on_node": 8}, {"ranks_on_node": 4, "nodes": 1}, {"ranks_on_node": 0}]
)
def test_a_few_ranks_of_a_node_are_no_node(changes):
    """Fewer than three quarters of its ranks, a job without another node, or unknown places: one each."""
    _, versions = three_ranks(**changes)
    assert [f.subject.rank for f in versions if f.status == "open"] == [0, 1, 2]


@pytest.mark.parametrize(
    ("more", "less", "named"),
    [(1.3, 1.09, [0, 1, 2, 3]), (1.3, 1.11, [None]), (1.06, 1.015, [None])],
    ids=["far apart", "alike", "both small"],
)
def test_half_of_a_node_that_is_far_slower_than_the_rest_has_something_of_its_own(more, less, named):
    """A power limit slows all of them by a tenth; the two that are slow by a third are not the whole node."""
    ranks = [msgspec.structs.replace(RANK, rank=i, gpu_index=i) for i in range(4)]
    ratios = (more, more, less, less)
    said = (
        slow(10, subject=r, overwhelming=True, ranks_on_node=4, slowdown_ratio=ratio)
        for r, ratio in zip(ranks, ratios, strict=True)
    )
    _, versions = run(*said)
    assert [f.subject.rank for f in versions if f.status == "open"] == named


def ranks_in_a_row(first, ratios, **changes):
    """Ranks of rows without nodes that slow down together, of a job of two times eight."""
    ranks = [Subject(type="rank", cluster="c", rank=first + i, job_id="j1") for i in range(len(ratios))]
    share = Lost(gpu_seconds=100.0, gpus=1.0)
    shown = {"overwhelming": True, "ranks_likely_on_node": 8, "nodes": 1, "lost": share} | changes
    return [slow(10, subject=r, slowdown_ratio=by, **shown) for r, by in zip(ranks, ratios, strict=True)]


@pytest.mark.parametrize("kind", ["straggler.fail_slow", "data.loader_slow"])
def test_ranks_of_a_likely_node_are_one_finding(kind):
    """All of a block of ranks fall behind together, rows name no node: one finding, with all they cost."""
    last, versions = run(*ranks_in_a_row(8, [1.3] * 8, kind=kind))
    opened = [f for f in versions if f.status == "open"]
    assert {(f.subject.type, f.subject.node, f.subject.ranks) for f in opened} == {("node", None, "8-15")}
    found = last[kind, "node"]
    assert found.gpu_hours_lost == pytest.approx(8 * 100.0 / 3600.0, abs=1e-4)
    assert found.evidence[0].note.startswith("rows name no node; ranks 8-15")
    assert found.action.commands == ()


def test_ranks_of_a_likely_node_that_wait_for_data_need_not_be_alike():
    """How long each waits for slow storage scatters: one finding about all of them, and none about a rank."""
    _, versions = run(
        *ranks_in_a_row(40, [1.4, 1.35, 1.61, 1.39, 1.51, 1.41, 1.4, 1.24], kind="data.loader_slow")
    )
    opened = [f for f in versions if f.status == "open"]
    assert {(f.subject.type, f.subject.ranks) for f in opened} == {("node", "40-47")}


def test_a_likely_node_is_named_by_its_ranks():
    """No name is claimed that rows did not tell, and it is compared with all ranks but its own."""
    last, _ = run(*ranks_in_a_row(8, [1.3] * 8))
    title = last["straggler.fail_slow", "node"].title
    assert title == "Likely machine of ranks 8-15 of job j1 is 1.30x slower than 8 peers"


@pytest.mark.parametrize(
    "ranks",
    [
        ranks_in_a_row(4, [1.3] * 8),
        ranks_in_a_row(8, [1.6, 1.3, 1.1, 1.4, 1.2, 1.5, 1.05, 1.3]),
        ranks_in_a_row(8, [1.3] * 8, ranks_likely_on_node=0),
        ranks_in_a_row(8, [1.3]),
    ],
    ids=["across two blocks", "by unlike amounts", "of nodes that nothing tells", "alone"],
)
def test_other_ranks_without_nodes_are_no_machine(ranks):
    """Each is a finding of its own, named as a rank."""
    _, versions = run(*ranks, until=120)
    opened = {(f.subject.type, f.subject.rank) for f in versions if f.status == "open"}
    assert opened == {("rank", s.subject.rank) for s in ranks}


def ranks_one_by_one(*times, **changes):
    """Ranks of one node that are found slow one after another, all since 5.0."""
    ranks = [msgspec.structs.replace(RANK, rank=i, gpu_index=i) for i in range(8)]
    found = [
        slow(ts, subject=r, overwhelming=True, ranks_on_node=8) for ts, r in zip(times, ranks, strict=False)
    ]
    return [
        s for one in found for s in (one, msgspec.structs.replace(one, state="update", ts=T0 + 25, **changes))
    ]


@pytest.mark.parametrize("contended", [False, True])
def test_ranks_that_are_found_slow_one_by_one_wait_for_their_node(contended):
    """Two ranks and then the others, within half the time the first took: the node alone is told of."""
    node = Subject(type="node", cluster="c", node="n1")
    busy = hot(8, subject=node, kind="host.cpu_contention", family="host")
    found = [*ranks_one_by_one(15, 15, 17, 17, 19, 19.5, 22, 24), *([busy] if contended else [])]
    _, versions = run(*found, until=60)
    assert {(f.kind, f.subject.type) for f in versions if f.status == "open"} == {
        ("straggler.fail_slow", "node")
    }
    [first] = {f.detected_at - T0 for f in versions if f.status == "open"}
    assert first == 19.5


@pytest.mark.parametrize(("times", "opened"), [((15,), [15]), ((15, 15), [20, 20]), ((15, 18), [15, 24.5])])
def test_ranks_wait_no_longer_than_they_must(times, opened):
    """One slow rank waits for nobody; of several each waits half as long as it took to be found."""
    _, versions = run(*ranks_one_by_one(*times), until=60)
    assert sorted({(f.subject.rank, f.detected_at - T0) for f in versions if f.status == "open"}) == [
        *enumerate(opened)
    ]


def test_gpus_that_wait_for_the_slow_one_make_no_node():
    """Where a slow rank's neighbours only draw less power, the finding is about the rank."""
    rank = slow(10, subject=msgspec.structs.replace(RANK, gpu_index=0), overwhelming=True, ranks_on_node=8)
    gpus = [msgspec.structs.replace(GPU, job_id="j1", gpu_index=i) for i in range(8)]
    idle = [slow(11, subject=g, family="clocks", nodes=0, detector="power") for g in gpus]
    _, versions = run(rank, *idle)
    assert {(f.subject.type, f.subject.rank) for f in versions if f.status == "open"} == {("rank", 13)}


def test_a_node_whose_ranks_wait_for_data_is_one_finding():
    """Slow loading on all ranks of a node is one finding about the node, with the power they save."""
    ranks = [msgspec.structs.replace(RANK, rank=i, gpu_index=i) for i in range(8)]
    waits = [slow(10, subject=r, kind="data.loader_slow", overwhelming=True, ranks_on_node=8) for r in ranks]
    power = [
        slow(11, subject=msgspec.structs.replace(GPU, gpu_index=i), family="clocks", detector="power")
        for i in range(8)
    ]
    _, versions = run(*waits, *power)
    opened = [f for f in versions if f.status == "open"]
    assert {(f.kind, f.subject.type, f.cause.hypothesis) for f in opened} == {
        ("data.loader_slow", "node", "data.loader_slow")
    }


def test_title_without_a_node():
    """A rank whose node is not known is named by its job."""
    nowhere = Subject(type="rank", cluster="c", rank=11, job_id="j1")
    last, _ = run(slow(subject=nowhere))
    assert last["straggler.fail_slow", "rank"].title == "Rank 11 of job j1 is 1.30x slower than 15 peers"


def test_two_slow_ranks_of_a_node_are_two_findings():
    """Two ranks are not yet a node."""
    ranks = [msgspec.structs.replace(RANK, rank=i, gpu_index=i) for i in range(2)]
    _, versions = run(*(slow(10, subject=r, overwhelming=True) for r in ranks))
    assert [f.subject.rank for f in versions if f.status == "open"] == [0, 1]


def test_expired_without_news():
    """A suspicion nobody repeats expires after ten minutes."""
    last, _ = run(slow(), until=700)
    assert last["straggler.fail_slow", "rank"].status == "expired"


def test_hang_needs_both_keys():
    """No progress alone is suspected; idle machines on nearly all nodes make it a hang."""
    job = Subject(type="job", cluster="c", job_id="j1")
    stopped = slow(10, subject=job, kind="hang.job", signal="no_progress", family="job", overwhelming=True)
    idle = [
        slow(
            11 + i,
            subject=Subject(type="node", cluster="c", node=f"n{i}", job_id="j1"),
            kind="hang.job",
            signal="idle",
            family="nic",
            detector="idle",
        )
        for i in range(2)
    ]
    alone, _ = run(stopped)
    both, _ = run(stopped, *idle)
    only_idle, none = run(*idle)
    assert alone["hang.job", "job"].status == "suspected"
    assert (both["hang.job", "job"].status, both["hang.job", "job"].severity) == ("open", "critical")
    assert both["hang.job", "job"].gpu_hours_lost_per_hour == 16
    assert only_idle == {}
    assert none == []


def test_forgotten_after_the_reopen_window():
    """State is dropped a day after the end: an idle stage holds nothing."""
    stage = FindingStage(FindingConfig())
    stage.process(slow())
    for hour in range(1, 50):
        stage.tick(T0 + 3600 * hour)
    assert stage._timelines == {}


def test_last_fraction_of_a_second_counts():
    """What the last record of a file gives rise to is among the findings of the finished stream."""
    fatal = NodeEvent(
        cluster="c", node="n1", ts=T0 + 0.7, source="kmsg", code="xid.79", subject={"gpu_index": 1}
    )
    pipeline = local_pipeline()
    found = [*pipeline.process(fatal), *pipeline.finish()]
    assert [(f.kind, f.status) for f in found] == [("xid.79", "open")]


def test_a_remap_that_waits_for_a_reset_waits_for_the_error_that_made_it():
    """The counters are read a moment before the kernel log is: one finding, about the error."""
    pending = hot(10.0, kind="ecc.row_remap_pending", family="gpu_memory", overwhelming=True, onset=T0 + 10)
    error = hot(10.6, kind="ecc.uncorrectable", family="event", overwhelming=True, onset=T0 + 10.6)
    _, versions = run(pending, error)
    assert {f.kind for f in versions if f.status == "open"} == {"ecc.uncorrectable"}
    alone, _ = run(pending)
    assert (alone["ecc.row_remap_pending", "gpu"].status) == "open"


def uncorrectable(ts, **changes):
    return hot(ts, kind="ecc.uncorrectable", family="gpu_memory", overwhelming=True, onset=T0 + 10, **changes)


def pending(ts, **changes):
    return hot(
        ts, kind="ecc.row_remap_pending", family="gpu_memory", overwhelming=True, onset=T0 + 10, **changes
    )


def opened_and_left(*suspicions, until):
    last, versions = run(*suspicions, until=until)
    opened = list(dict.fromkeys(f.kind for f in versions if f.status == "open"))
    return opened, {kind: (f.status, (f.resolved_at or T0) - T0) for (kind, _), f in last.items()}


def test_an_error_lasts_as_long_as_its_remap_is_pending():
    """What the counters say no more, the rows that wait for a reset do: one finding until it comes."""
    waiting = [pending(ts, state="update") for ts in range(20, 1400, 60)]
    said = [uncorrectable(10), pending(10), uncorrectable(60, state="clear"), *waiting]
    opened, left = opened_and_left(*said, until=1400)
    assert (opened, left["ecc.uncorrectable"][0]) == (["ecc.uncorrectable"], "open")
    opened, left = opened_and_left(*said, pending(1400, state="clear"), until=1800)
    assert (opened, left["ecc.uncorrectable"]) == (["ecc.uncorrectable"], ("resolved", 1700.0))


def test_a_remap_told_first_is_absorbed_by_the_error_that_made_it():
    """News of the error that comes much later takes over, and names one cause."""
    opened, left = opened_and_left(pending(10), uncorrectable(25), until=40)
    assert opened == ["ecc.row_remap_pending", "ecc.uncorrectable"]
    assert left == {"ecc.row_remap_pending": ("resolved", 25.0), "ecc.uncorrectable": ("open", 0.0)}
    last, _ = run(pending(10), uncorrectable(25), until=40)
    assert last["ecc.uncorrectable", "gpu"].cause.alternatives == {}


def test_late_news_is_not_lost_and_late_repeats_change_nothing():
    """A suspicion later than the allowed lateness is still heard once."""
    stage = FindingStage(FindingConfig(lateness_seconds=30))
    for ts in range(10, 200, 10):
        stage.process(slow(ts, state="update"))
        stage.tick(T0 + ts)
    late = hot(12)
    found = [*stage.process(late), *stage.tick(T0 + 201)]
    assert {(f.kind, f.status) for f in found} >= {("straggler.fail_slow", "open")}
    assert [*stage.process(late), *stage.tick(T0 + 202)] == []


def test_open_and_ended_within_one_jump_of_time_is_told_step_by_step():
    """When event time leaps, every step of the life still comes out."""
    stage = FindingStage()
    for s in (slow(overwhelming=True), slow(20, state="clear")):
        stage.process(s)
    assert [f.status for f in stage.tick(T0 + 5 * 86400)] == ["open", "open", "resolved"]


def test_hardware_alone_is_suspected_and_a_fatal_event_opens():
    """A weak hardware sign waits for company; an explicit fatal event does not."""
    weak, _ = run(hot())
    fatal, _ = run(hot(kind="xid.79", family="event", overwhelming=True))
    assert weak["throttle.thermal", "gpu"].status == "suspected"
    assert (fatal["xid.79", "gpu"].status, fatal["xid.79", "gpu"].severity) == ("open", "critical")


def test_symptom_of_a_fatal_event_is_no_second_finding():
    """A rank that slows down on a GPU with a fatal event is that event's evidence."""
    event = hot(8, kind="xid.79", family="event", overwhelming=True)
    last, _ = run(event, slow(10, overwhelming=True))
    assert last["xid.79", "gpu"].slowdown_ratio == 1.3
    assert last["straggler.fail_slow", "rank"].status == "suspected"
    assert last["straggler.fail_slow", "rank"].group_key == last["xid.79", "gpu"].dedup_key


def test_absent_telemetry_is_no_witness():
    """A stale exporter opens its own finding and corroborates nothing."""
    node = Subject(type="node", cluster="c", node="n1")
    stale = hot(11, subject=node, kind="exporter.stale", family="silence", detector="silence")
    last, _ = run(slow(), stale)
    assert last["exporter.stale", "node"].status == "open"
    assert last["straggler.fail_slow", "rank"].status == "suspected"


def test_defect_long_before_explains_but_does_not_corroborate():
    """A throttle that began long before is the cause of a finding that opens by itself, and opens none."""
    before = [hot(ts, state="update", onset=T0 - 500) for ts in (0, 100, 200)]
    weak, _ = run(*before, slow(201, onset=T0 + 200), until=210)
    strong, _ = run(*before, slow(201, onset=T0 + 200, overwhelming=True), until=210)
    assert weak["straggler.fail_slow", "rank"].status == "suspected"
    assert strong["straggler.fail_slow", "rank"].cause.hypothesis == "throttle.thermal"


def test_job_level_verdict_accuses_nobody():
    """An overwhelming job-wide verdict opens as a warning about the job, without rank, node or drain."""
    job = Subject(type="job", cluster="c", job_id="j1")
    claim = slow(
        subject=job,
        kind="straggler.job_wide",
        family="job",
        overwhelming=True,
        hypotheses={"imbalance.stage": 5.0},
    )
    finding = run(claim)[0]["straggler.job_wide", "job"]
    assert (finding.status, finding.severity, finding.subject.rank) == ("open", "warning", None)
    assert (finding.cause.hypothesis, finding.action.code) == ("imbalance.stage", "CHECK_APP")
    assert finding.action.commands == ()


def test_flapping_is_one_intermittent_finding():
    """Three relapses within an hour make it intermittent, under the same id."""
    steps = []
    for i in range(4):
        steps += [slow(10 + 100 * i, overwhelming=True), slow(60 + 100 * i, state="clear")]
    _, versions = run(*steps, until=500)
    assert {f.id for f in versions} == {versions[0].id}
    assert (versions[-1].kind, versions[-1].flaps) == ("straggler.intermittent", 3)
    assert versions[-1].action.code == "WATCH"


def test_cost_is_counted_while_it_lasts():
    """Lost GPU-hours grow with time at the job's loss and stop when the cause clears."""
    ten_minutes = [slow(10 + 30 * i, state="update", overwhelming=True) for i in range(21)]
    last, _ = run(
        *ten_minutes, slow(640, state="clear"), until=2000, config=FindingConfig(gpu_hour_price=2.5)
    )
    finding = last["straggler.fail_slow", "rank"]
    assert finding.gpu_hours_lost == pytest.approx(16 * (1 - 1 / 1.3) * 635 / 3600, abs=1e-3)
    assert (finding.gpu_hours_lost_per_hour, finding.cost_per_hour) == (0.0, None)


def stopped(*more, until, **changes):
    """Return the last version of a hang of 16 GPUs since 5 s that was found at 11 s, and all its versions."""
    job = Subject(type="job", cluster="c", job_id="j1")
    hang = slow(10, subject=job, kind="hang.job", signal="no_progress", family="job", **changes)
    last, versions = run(hang, *(idle(11, node) for node in ("n0", "n1")), *more, until=until)
    return last["hang.job", "job"], [f for f in versions if f.kind == "hang.job"]


def idle(ts, node, **changes):
    subject = Subject(type="node", cluster="c", node=node, job_id="j1")
    return slow(ts, subject=subject, kind="hang.job", signal="idle", family="nic", detector="idle", **changes)


def test_a_stop_is_charged_for_as_long_as_it_lasts():
    """Twenty minutes after the last word the cost is up to date, and none of its versions is news."""
    found, versions = stopped(until=1205.0)
    assert found.gpu_hours_lost == pytest.approx(16 * 1200 / 3600, rel=0.03)
    since = T0 + 1205 - found.last_seen_at
    assert found.gpu_hours_lost + 16 * since / 3600 == pytest.approx(16 * 1200 / 3600, abs=1e-3)
    assert found.gpu_hours_lost_per_hour == 16
    opened = [NotifiedState.of(f) for f in versions if f.status == "open"]
    assert {event_of(before, after) for before, after in pairwise(opened)} == {None}


def test_a_stop_is_charged_until_the_job_moves():
    """The clear ends it, at its own time, also when it comes while the machines are thought to be idle."""
    job = Subject(type="job", cluster="c", job_id="j1")
    moves = slow(905, subject=job, kind="hang.job", signal="no_progress", family="job", state="clear")
    found, _ = stopped(moves, until=3000.0)
    assert (found.status, found.gpu_hours_lost) == ("resolved", 4.0)


def test_a_stop_that_nobody_ends_is_charged_no_longer_than_its_machines_are_idle():
    """A job stage restarted an hour into it never tells that the job moves; that the nodes work does."""
    nodes = ("n0", "n1")
    still = [idle(500, node, state="update") for node in nodes]
    work = [idle(905, node, state="clear") for node in nodes]
    found, _ = stopped(*still, *work, until=5000.0)
    assert found.gpu_hours_lost == pytest.approx(16 * 960 / 3600, rel=0.05)


def certain_stop(ts):
    job = Subject(type="job", cluster="c", job_id="j1")
    return slow(
        ts, onset=T0 + 5, subject=job, kind="hang.job", signal="no_progress", family="job", certain=True
    )


def test_a_stop_is_charged_on_by_a_stage_that_knows_only_its_last_hour():
    """Rebuilt three hours into the stop, it takes it up under its id, with all that it has cost."""
    stops = [certain_stop(10 + 900 * n) for n in range(13)]
    votes = [idle(11 + 60 * n, node, onset=T0 + 5) for n in range(180) for node in ("n0", "n1")]
    whole = [*stops, *votes]
    last_hour = [s for s in whole if s.ts > T0 + 7205.0]
    live, rebuilt = (run(*said, until=10_805.0) for said in (whole, last_hour))
    ids = {f.id for _, versions in (live, rebuilt) for f in versions if f.kind == "hang.job"}
    assert len(ids) == 1
    for last, versions in (live, rebuilt):
        found = last["hang.job", "job"]
        assert (found.status, found.severity, found.occurrences, found.flaps) == ("open", "critical", 1, 0)
        assert found.gpu_hours_lost == pytest.approx(16 * 10_800 / 3600, rel=0.005)
        told = [NotifiedState.of(f) for f in versions if f.kind == "hang.job" and f.status == "open"]
        assert {event_of(before, after) for before, after in pairwise(told)} == {None}


def test_a_stop_that_no_machine_bears_out_expires_however_often_it_is_repeated():
    _, versions = run(*(certain_stop(10 + 900 * n) for n in range(9)), until=8000.0)
    assert [f.status for f in versions if f.kind == "hang.job"] == ["suspected", "expired"]


def test_a_repeat_does_not_undo_that_the_machines_of_a_stop_work_again():
    """At work from 905 s on, which counts a minute later; a step writer that died is no stop."""
    nodes = ("n0", "n1")
    still = [idle(500, node, state="update") for node in nodes]
    work = [idle(905, node, state="clear") for node in nodes]
    again = [certain_stop(10 + 900 * n) for n in range(1, 5)]
    found, _ = stopped(certain_stop(120), *still, *work, *again, until=5000.0)
    assert found.gpu_hours_lost == pytest.approx(16 * 960 / 3600, rel=0.05)


def test_a_detector_that_dates_its_suspicion_anew_is_not_charged_twice():
    """Restarted, it tells of the time since 205 s: of its 200 s from there the last hundred are new."""
    again = slow(405, state="update", onset=T0 + 205)
    last, _ = run(slow(10, overwhelming=True), slow(305, state="update"), again, until=420.0)
    assert last["straggler.fail_slow", "rank"].gpu_hours_lost == pytest.approx(
        16 * (1 - 1 / 1.3) * 400 / 3600, abs=1e-3
    )


def test_a_job_that_stands_still_loses_no_more_to_its_slow_steps():
    """Hardware that goes on to look bad keeps the finding up to date, not its steps."""
    power = [slow(ts, lost=None, gpus=0, **POWER) for ts in (12, 90)]
    last, _ = run(slow(overwhelming=True), *power, until=100)
    finding = last["straggler.fail_slow", "rank"]
    assert finding.last_seen_at == T0 + 90
    assert finding.gpu_hours_lost == pytest.approx(16 * (1 - 1 / 1.3) * 5 / 3600, abs=1e-4)


def test_what_was_only_suspected_costs_nothing():
    """A weak suspicion that ends is on no account, whatever its job lost meanwhile."""
    _, versions = run(slow(), slow(100, state="clear"), until=1000.0)
    assert {f.gpu_hours_lost for f in versions} == {None}


def test_dead_exporter_is_no_dead_node():
    """Samples and steps travel through one exporter: without both, only telemetry is at fault."""
    node = Subject(type="node", cluster="c", node="n1")
    absent = {"subject": node, "family": "silence", "detector": "silence", "job_slowdown_ratio": None}
    silent = slow(30, kind="node.silent", **absent)
    stale = slow(20, kind="exporter.stale", **absent)
    missing = slow(31, kind="hang.rank_missing", family="silence", detector="step_progress")
    last, _ = run(stale, silent, missing, until=40)
    assert [kind for (kind, _), f in last.items() if f.status == "open"] == ["exporter.stale"]
    assert last["exporter.stale", "node"].severity == "warning"


@pytest.mark.parametrize(("rows_back", "told"), [(960.0, []), (2000.0, [1040.0])])
def test_rows_that_come_with_the_next_step_after_telemetry_is_back_are_not_missed(rows_back, told):
    """They are waited for two minutes: a step takes its time."""
    node = msgspec.structs.replace(RANK, rank=None, gpu_index=None, type="node")
    absent = {"subject": node, "family": "silence", "detector": "silence", "job_slowdown_ratio": None}
    silent = slow(20, kind="exporter.stale", **absent)
    heard = msgspec.structs.replace(silent, state="clear", ts=T0 + 920)
    gone = {"kind": "hang.rank_missing", "family": "silence", "detector": "step_progress"}
    missing = slow(60, overwhelming=True, **gone)
    back = msgspec.structs.replace(missing, state="clear", ts=T0 + rows_back)
    still = [msgspec.structs.replace(missing, ts=T0 + ts) for ts in range(300, int(rows_back), 300)]
    stage = FindingStage()
    for s in (silent, missing, *still, heard, back):
        stage.process(s)
    versions = [f for second in range(3000) for f in stage.tick(T0 + second)]
    opened = [f for f in versions if f.status == "open" and f.kind == gone["kind"]]
    assert sorted({f.detected_at - T0 for f in opened}) == told
