"""FindingStage and tensor-parallel groups, whose ranks wait for each other as they compute."""

import json
import random

import msgspec
import pytest

from slowrank.telemetry import Lost, Subject
from slowrank.telemetry.records import Suspect
from tests.streams.cluster.test_stage import GPU, T0, hot, run, slow


def mate(rank, ts=10.0, *, node="n1", mates="as_slow", **changes):
    """Return what is said of a rank of a job whose groups have four ranks and its nodes eight."""
    subject = Subject(
        type="rank",
        cluster="c",
        node=node,
        gpu_index=rank % 8,
        rank=rank,
        job_id="j1",
        coords={"dp": rank // 4, "pp": 0, "tp": rank % 4},
    )
    # Each rank of the four is charged its share.
    share = Lost(gpu_seconds=4 * (1 - 1 / 1.3) * (ts - 5), gpus=4 * (1 - 1 / 1.3))
    fields = {"overwhelming": True, "ranks_on_node": 8, "ranks_in_group": 4, "mates": mates, "lost": share}
    return slow(ts, subject=subject, **(fields | changes))


def opened(versions):
    """Return who has a finding, and when it was told: (kind of subject, rank or coordinates, time)."""
    last = {
        f.dedup_key: (f.subject.type, f.subject.rank, f.detected_at - T0)
        for f in versions
        if f.status == "open"
    }
    return sorted(last.values(), key=str)


def story(versions, key="group"):
    """Return the last version of the one finding about a group."""
    [found] = {f.dedup_key: f for f in versions if f.subject.type == key}.values()
    return found


GROUP = [mate(rank) for rank in range(4)]


def test_groups_of_a_job_whose_rows_name_no_node_and_no_coordinates_are_told_by_their_ranks():
    """Each is a finding of its own, and no machine is named that rows do not name."""
    told = [
        msgspec.structs.replace(
            mate(rank, ts, state=state, node=None, ranks_on_node=0, ranks_likely_on_node=8),
            subject=Subject(type="rank", cluster="c", rank=rank, job_id="j1"),
        )
        # At 1.3x they have cost half a minute by the second report, and are drained.
        for ts, state in ((10.0, "raise"), (110.0, "update"))
        for rank in (*range(8, 12), *range(20, 24))
    ]
    _, versions = run(*told, until=110.0)
    last = {f.subject.ranks: f for f in versions if f.status == "open"}
    assert {(f.subject.type, f.subject.node, ranks) for ranks, f in last.items()} == {
        ("group", None, "8-11"),
        ("group", None, "20-23"),
    }
    found = last["8-11"]
    assert found.title == "Group of ranks 8-11 of job j1 is 1.30x slower than 12 peers"
    assert [s.subject.rank for s in found.suspects] == [8, 9, 10, 11]
    assert found.action.text.startswith("Look up the node of the group of ranks 8-11 of job j1, drain it")
    assert found.action.commands == ()


def test_ranks_that_wait_for_each_other_are_one_finding():
    """Each of them is as likely to be the slow one, the job loses once, and all are to be looked at."""
    _, versions = run(*GROUP)
    found = story(versions)
    assert opened(versions) == [("group", None, 12.5)]
    assert found.gpu_hours_lost_per_hour == pytest.approx(16 * (1 - 1 / 1.3), abs=1e-4)
    assert (found.subject.node, found.subject.coords) == ("n1", {"dp": 0, "pp": 0})
    assert [(s.subject.rank, s.probability) for s in found.suspects] == [(r, 0.25) for r in range(4)]
    assert (found.severity, found.action.code) == ("error", "RUN_DIAG")
    assert found.title == "n1 tensor-parallel group dp=0, pp=0 is 1.30x slower than 12 peers"
    assert "n1 GPUs 0, 1, 2, 3 (ranks 0, 1, 2, 3)" in found.action.text
    assert "step times do not show which" in found.action.text
    assert "step times do not show" in found.evidence[0].note
    ranks = {f.subject.rank: f for f in versions if f.subject.type == "rank"}
    assert {f.group_key for f in ranks.values()} == {found.dedup_key}


def test_a_rank_that_is_slow_on_and_off_besides_is_listed_once():
    on_and_off = mate(0, 20.0, kind="straggler.intermittent", detector="peer_step.intermittent")
    suspects = story(run(*GROUP, on_and_off)[1]).suspects
    assert [(s.subject.rank, s.probability) for s in suspects] == [(r, 0.25) for r in range(4)]


def on_half_of_its_node():
    """Return a group that the job stage reports: ranks 4 to 7 of the eight of a node."""
    ranks = [
        Subject(type="rank", cluster="c", node="n1", gpu_index=r, rank=r, job_id="j1") for r in range(4, 8)
    ]
    subject = Subject(type="group", cluster="c", node="n1", job_id="j1", ranks="4-7")
    listed = tuple(Suspect(subject=rank, probability=0.25) for rank in ranks)
    return slow(10.0, subject=subject, suspects=listed, overwhelming=True)


OF_ANOTHER_JOB = Subject(type="rank", cluster="c", node="n1", gpu_index=0, rank=0, job_id="j2")


@pytest.mark.parametrize("first", ["group", "rank"])
@pytest.mark.parametrize("kind", ["straggler.fail_slow", "straggler.intermittent"])
def test_a_group_on_half_of_a_node_explains_no_rank_of_another_job_there(kind, first):
    both = [on_half_of_its_node(), slow(10.0, subject=OF_ANOTHER_JOB, kind=kind, overwhelming=True)]
    _, versions = run(*(both if first == "group" else reversed(both)), until=60.0)
    last = {f.id: f for f in versions}.values()
    assert sorted((f.subject.type, f.status, f.group_key) for f in last) == [
        ("group", "open", None),
        ("rank", "open", None),
    ]


@pytest.mark.parametrize(("gpu", "part"), [(0, False), (5, True)])
def test_a_group_on_half_of_a_node_is_explained_by_its_own_gpus_alone(gpu, part):
    at = Subject(type="gpu", cluster="c", node="n1", gpu_index=gpu)
    last, _ = run(on_half_of_its_node(), hot(12.0, subject=at), until=60.0)
    group = last["straggler.fail_slow", "group"]
    assert (last["throttle.thermal", "gpu"].group_key == group.dedup_key) is part
    assert any(e.metric == "gpu.clock.sm_hz" for e in group.evidence) is part
    assert group.title == "Group of ranks 4-7 of job j1 on n1 is 1.30x slower than 15 peers"


def test_a_group_is_slow_since_its_middle_rank_is():
    """One rank was in trouble before the others: it does not date them."""
    since = [T0 + 1, T0 + 5, T0 + 6, T0 + 6]
    told = [msgspec.structs.replace(s, onset=at) for s, at in zip(GROUP, since, strict=True)]
    _, versions = run(*told)
    assert story(versions).onset == since[1]


@pytest.mark.parametrize("others_at", [(10.0, 11.0, 12.0), (12.4, 12.4, 12.4)])
def test_the_first_waits_for_mates_that_rise(others_at):
    """It is held for half the time it took to be found, from when it was: its group is told of by then."""
    rest = [mate(rank, ts) for rank, ts in enumerate(others_at, start=1)]
    _, versions = run(mate(0), *rest)
    assert opened(versions) == [("group", None, 12.5)]


def test_one_whose_mates_are_well_waits_for_nobody():
    """A rank that alone is slow is told of at once."""
    _, versions = run(mate(0, mates=""))
    assert opened(versions) == [("rank", 0, 10.0)]


def test_one_whose_mates_are_never_found_waits_no_longer():
    """Mates that looked slow and were not: it is told of after half the time that it took to be found."""
    _, versions = run(mate(0), until=60)
    assert opened(versions) == [("rank", 0, 12.5)]


def test_three_of_four_are_no_group():
    """Whoever waits for a mate is slow as well: one that is not has nothing to do with them."""
    _, versions = run(*(mate(rank, mates="") for rank in range(3)))
    assert [(kind, rank) for kind, rank, _ in opened(versions)] == [("rank", 0), ("rank", 1), ("rank", 2)]


def nameless(rank, ts=10.0, **changes):
    """Return what is said of a rank of a job without coordinates: two in a row look like a group."""
    subject = Subject(
        type="rank", cluster="c", node="n1", gpu_index=rank, local_rank=rank, rank=rank, job_id="j1"
    )
    return msgspec.structs.replace(mate(rank, ts), subject=subject, ranks_in_group=2, **changes)


def test_ranks_that_look_like_a_group_are_one_finding_without_coordinates():
    """Ranks 2 and 3 of the node, which nothing else distinguishes."""
    _, versions = run(nameless(2), nameless(3))
    found = story(versions)
    assert opened(versions) == [("group", None, 12.5)]
    assert (found.subject.node, found.subject.coords, found.subject.ranks) == ("n1", None, "2-3")
    assert found.title == "Group of ranks 2-3 of job j1 on n1 is 1.30x slower than 14 peers"
    assert [s.subject.rank for s in found.suspects] == [2, 3]


def test_ranks_of_a_group_that_are_in_no_row_are_listed():
    """A launcher that deals ranks out to the nodes in turn puts ranks 8 and 11 beside each other."""
    dealt = [
        msgspec.structs.replace(s, subject=msgspec.structs.replace(s.subject, rank=rank))
        for s, rank in ((nameless(2), 8), (nameless(3), 11))
    ]
    _, versions = run(*dealt)
    assert story(versions).subject.ranks == "8,11"


def test_another_pair_of_the_node_is_no_part_of_a_group_without_coordinates():
    """Nor has it the group's finding, that says no more than which node: its ranks have their own."""
    later = [nameless(rank, 100.0, onset=T0 + 90) for rank in (4, 5)]
    _, versions = run(nameless(2), nameless(3), *later, until=200)
    assert [(kind, rank) for kind, rank, _ in opened(versions)] == [
        ("group", None),
        ("rank", 4),
        ("rank", 5),
    ]
    assert [s.subject.rank for s in story(versions).suspects] == [2, 3]


def test_a_group_over_several_nodes_is_left_alone():
    """What is known of one node says nothing of the others."""
    told = [mate(rank, node=f"n{rank % 2}", ranks_in_group=0, mates="") for rank in range(4)]
    _, versions = run(*told)
    assert [rank for _, rank, _ in opened(versions)] == [0, 1, 2, 3]


@pytest.mark.parametrize("rank", [0, 2])
def test_the_slowest_is_named_where_that_is_clear(rank):
    """Its mates wait for a part of its work: they are told as part of the finding about it."""
    told = [mate(r, mates="less_slow" if r == rank else "as_slow") for r in range(4)]
    late = mate(3, 40, state="update")
    _, versions = run(*told, late, until=60)
    assert opened(versions) == [("rank", rank, 12.5)]
    others = {f.subject.rank: f for f in versions if f.subject.rank not in (rank, None)}
    assert {f.group_key for f in others.values()} == {f"c/rank/j1:{rank}/straggler.fail_slow"}


def test_the_slowest_that_shows_later_is_the_likeliest():
    """A group that is told of stays so; who has become clearly slower comes first."""
    _, versions = run(*GROUP, mate(2, 40, state="update", mates="less_slow"), until=60)
    found = story(versions)
    assert opened(versions) == [("group", None, 12.5)]
    assert found.suspects[0].subject.rank == 2
    assert found.suspects[0].probability > 0.6
    assert sum(s.probability for s in found.suspects) == pytest.approx(1.0, abs=1e-3)


def gpu(index):
    return msgspec.structs.replace(GPU, gpu_index=index)


def test_hardware_tells_which_of_them_it_is():
    """A throttle of one of their GPUs explains the group, and its rank is named: the others wait for it."""
    _, versions = run(*GROUP, hot(subject=gpu(2)))
    found = story([f for f in versions if f.subject.rank == 2 and f.status == "open"], "rank")
    assert opened(versions) == [("rank", 2, 12.5)]
    assert found.title == "n1 GPU 2 (rank 2) is 1.30x slower than 12 peers"
    note = found.evidence[0].note or ""
    assert "ranks 0, 1, 3 of its tensor-parallel group wait for it" in note
    # Whether the others' GPUs are seen at all, the suspicions do not tell.
    assert note.endswith("no telemetry of their GPUs shows why")
    assert found.cause is not None
    assert found.cause.hypothesis == "throttle.thermal"
    assert (found.suspects[0].subject.rank, found.suspects[0].probability) == (
        2,
        pytest.approx(0.87, abs=0.01),
    )
    assert "n1 GPU 2 (rank 2)" in found.action.text
    assert "step times" not in found.action.text


@pytest.mark.parametrize("hardware", [[hot(subject=gpu(6))], [hot(subject=gpu(i)) for i in range(4)]])
def test_hardware_that_tells_nothing_leaves_them_alike(hardware):
    """Another GPU of the node is no part of the group; where all of theirs are hot, none stands out."""
    _, versions = run(*GROUP, *hardware)
    assert [s.probability for s in story(versions).suspects] == [0.25] * 4


LOW = {"kind": "clock.low", "log_likelihood_ratio": 2.0}


@pytest.mark.parametrize(
    ("hardware", "named"),
    [
        ([hot(subject=gpu(2), **LOW)], 2),
        ([hot(40, subject=gpu(2), onset=T0 + 30, **LOW)], 2),
        ([hot(subject=gpu(2), **(LOW | {"log_likelihood_ratio": 1.5}))], 2),
        # Of two that show something, of one that shows little, or only since long before, none is named.
        ([hot(subject=gpu(2), **LOW), hot(subject=gpu(1), **LOW)], None),
        ([hot(subject=gpu(2), **(LOW | {"log_likelihood_ratio": 1.0}))], None),
        ([hot(subject=gpu(2), onset=T0 - 100, **LOW)], None),
        ([hot(subject=gpu(2), **LOW), hot(40, state="clear", subject=gpu(2), **LOW)], None),
        # Nor where step times say that it is another.
        ([hot(subject=gpu(2), **LOW), mate(1, 40, state="update", mates="less_slow")], None),
    ],
)
def test_a_rank_is_named_where_its_gpu_alone_shows_why(hardware, named):
    """It is one finding with the same key; its suspects are the group."""
    _, versions = run(*GROUP, *hardware, until=60)
    last = {f.dedup_key: f for f in versions if f.status == "open"}
    found = last["c/group/j1:n1:dp=0,pp=0/straggler.fail_slow"]
    assert (found.subject.type, found.subject.rank) == ("group" if named is None else "rank", named)
    assert {s.subject.rank for s in found.suspects} == set(range(4))


def test_all_groups_of_a_node_are_the_node():
    """Two groups that fill their node are one finding about it, also when one was complete before."""
    _, versions = run(*(mate(rank, 10 if rank < 4 else 12) for rank in range(8)), until=60)
    assert [kind for kind, _, _ in opened(versions)] == ["node"]


def test_a_group_that_was_told_before_its_node_is_part_of_it():
    """Once the other ranks of the node are found too, its finding ends as a part of the node's."""
    _, versions = run(*(mate(rank, 10 if rank < 4 else 30) for rank in range(8)), until=60)
    found, node = story(versions), story(versions, "node")
    assert (found.status, found.group_key, node.status) == ("resolved", node.dedup_key, "open")


def test_groups_of_different_nodes_are_two_findings():
    """Each has a slow rank of its own."""
    _, versions = run(*GROUP, *(mate(rank, node="n2") for rank in range(8, 12)))
    assert [kind for kind, _, _ in opened(versions)] == ["group", "group"]


def test_a_group_recovers_and_comes_again():
    """It is resolved once recovery has held; a relapse is the same finding, and no rank's."""
    well = [msgspec.structs.replace(s, state="clear", ts=T0 + 100) for s in GROUP]
    again = [msgspec.structs.replace(s, ts=T0 + 2000 + rank, onset=T0 + 1990) for rank, s in enumerate(GROUP)]
    _, before = run(*GROUP, *well, until=1000)
    assert (story(before).status, story(before).resolved_at) == ("resolved", T0 + 400)
    _, after = run(*GROUP, *well, *again, until=2100)
    assert {(f.subject.type, f.occurrences) for f in after if f.status == "open"} == {
        ("group", 1),
        ("group", 2),
    }


def test_a_group_that_is_slow_on_and_off_stays_one_finding():
    """The first to relapse waits for its mates, though it is not known yet that they relapse."""
    well = [msgspec.structs.replace(s, state="clear", ts=T0 + 100) for s in GROUP]
    again = [
        msgspec.structs.replace(s, ts=T0 + 200 + rank, onset=T0 + 190, mates="as_slow" if rank else "")
        for rank, s in enumerate(GROUP)
    ]
    mended = [msgspec.structs.replace(s, ts=T0 + 204, state="update") for s in GROUP]
    _, versions = run(*GROUP, *well, *again, *mended, until=300)
    assert {f.subject.type for f in versions if f.status == "open"} == {"group"}
    assert story(versions).status == "open"


@pytest.mark.parametrize("seed", range(5))
def test_same_findings_in_any_order_and_with_repeats(seed):
    """Whoever of the group was heard of first, its finding is the same byte for byte."""
    told = [
        *(mate(rank, ts) for rank, ts in enumerate((10.0, 11.0, 12.0, 14.0))),
        *(mate(rank, 40, state="update", mates="less_slow" if rank == 1 else "as_slow") for rank in range(4)),
        hot(12, subject=gpu(3)),
        hot(30, subject=gpu(3), state="clear"),
    ]
    mixed = told * 2
    random.Random(seed).shuffle(mixed)
    assert _bytes(run(*mixed, until=60)[1]) == _bytes(run(*told, until=60)[1])


def _bytes(versions):
    last = {f.dedup_key: f.to_json() for f in versions}
    return json.dumps(last, sort_keys=True)


def test_mates_that_are_slow_on_and_off_are_part_of_the_slowest():
    """Also when they are found so while it is found slow for good again."""
    told = [mate(r, mates="less_slow" if r == 0 else "") for r in range(2)]
    over = [mate(r, 60, state="clear") for r in range(2)]
    on_and_off = [
        mate(r, 61, kind="straggler.intermittent", mates="less_slow" if r == 0 else "") for r in range(2)
    ]
    again = [mate(r, 80, onset=T0 + 75, mates="less_slow" if r == 0 else "") for r in range(2)]
    _, versions = run(*told, *over, *on_and_off, *again, until=120)
    assert [rank for _, rank, _ in opened(versions)] == [0]


def part(rank, **changes):
    """Return that a rank is slow as a part of a group that the job stage reports."""
    fields = {
        "kind": "straggler.of_group",
        "detector": "peer_step.part",
        "overwhelming": False,
        "hypotheses": {"straggler.fail_slow": 0.0},
        "ranks_in_group": 0,
        "ranks_on_node": 0,
        "lost": None,
    }
    return mate(rank, mates="", **(fields | changes))


def test_a_part_of_a_group_has_no_finding():
    """Not even one that is only suspected: the group has it, whatever else its rank is suspected of."""
    _, versions = run(*(part(rank) for rank in range(4)), until=60)
    assert not versions


def test_hardware_of_a_part_of_a_group_is_confirmed_by_it():
    """A throttle that nobody else saw is a finding; how grave that is for the job, its group tells."""
    alone, _ = run(hot(subject=gpu(2)))
    assert {f.status for f in alone.values()} == {"suspected"}
    _, versions = run(part(2), hot(subject=gpu(2)))
    found = story(versions, "gpu")
    assert (found.kind, found.status, found.slowdown_ratio) == ("throttle.thermal", "open", 1.3)
    assert found.cause is not None
    assert found.cause.hypothesis == "throttle.thermal"
