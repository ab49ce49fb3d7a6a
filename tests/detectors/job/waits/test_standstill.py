"""Of ranks that wait in collectives, sends and receives, those are named that wait for no other."""

from detectors.job.waits.standstill import Call, Trace, standstills

WORLD = {"0": tuple(range(8))}


def call(number, state="done", group="0", operation="all_reduce", elements=1000, peer=None):
    return Call(group, number, operation, elements, state in ("done", "started"), state == "done", peer)


def job(special, last="started", ranks=range(8)):
    """Eight ranks of which all but those in ``special`` are in collective 8."""
    own = {rank: [call(7), call(8, last)] for rank in ranks} | special
    return {rank: Trace(WORLD, calls) for rank, calls in own.items()}


def only(traces):
    (found,) = standstills(traces)
    return found


def test_a_rank_that_has_not_issued_the_collective_is_the_cause():
    """The others are in it; some have issued later ones already, as buckets are."""
    ahead = [call(7), call(8, "started"), call(9, "queued", elements=20)]
    found = only(job({5: [call(7)], 1: ahead, 2: ahead}))

    assert (found.number, found.operation, found.absent, found.cause) == (8, "all_reduce", (5,), (5,))
    assert found.waiting == (0, 1, 2, 3, 4, 6, 7)


def test_a_rank_in_another_collective_is_the_odd_one():
    """Of another function, or of another size where all have the same."""
    for other in (call(8, "started", operation="_all_gather_base"), call(8, "started", elements=1001)):
        found = only(job({5: [call(7), other]}))
        assert (found.astray, found.cause) == ({5: other}, (5,))


def test_inputs_of_an_exchange_may_differ():
    """Each rank sends what it has."""
    found = only(job({r: [call(8, "started", operation="alltoall", elements=r)] for r in range(8)}))

    assert (found.astray, found.cause) == ({}, ())


def test_of_two_halves_in_different_collectives_none_is_right():
    """All of them are astray."""
    other = call(8, "started", operation="broadcast")
    found = only(job({rank: [call(7), other] for rank in range(4)}))

    assert (set(found.astray), found.waiting) == (set(range(8)), ())


def test_a_rank_whose_gpu_has_not_started_it_is_the_cause():
    """Where the others have; where none has, starts are not recorded."""
    assert only(job({5: [call(7), call(8, "queued")]})).cause == (5,)
    assert only(job({}, "queued")).cause == ()


def test_a_rank_without_a_trace_is_named_where_no_other_is():
    """It may have died; where another has not issued the collective, only its trace may be missing."""
    traces = job({})
    del traces[5]
    assert (only(traces).silent, only(traces).cause) == ((5,), (5,))

    traces[2] = Trace(WORLD, [call(7)])
    assert (only(traces).silent, only(traces).cause) == ((5,), (2,))


def test_all_in_one_collective_have_no_cause_among_them():
    """The network or a GPU does not move the data."""
    found = only(job({}))

    assert (found.awaited, found.cause) == (frozenset(), ())


def test_a_job_that_works_has_no_standstill():
    """All that was issued has ended."""
    assert standstills(job({}, "done")) == []


def test_of_several_groups_that_of_a_rank_that_waits_for_none_comes_first():
    """Rank 1 is busy; its tensor-parallel mate waits for it, and the replicas for both."""
    groups = {0: {"t0": (0, 1), "d0": (0, 2)}, 1: {"t0": (0, 1), "d1": (1, 3)}}
    groups |= {2: {"t1": (2, 3), "d0": (0, 2)}, 3: {"t1": (2, 3), "d1": (1, 3)}}
    calls = {0: [call(8, "started", "t0")], 1: [call(7, group="t0")]}
    calls |= {2: [call(8, group="t1"), call(3, "started", "d0")]}
    calls |= {3: [call(8, group="t1"), call(3, "started", "d1")]}
    found = standstills({rank: Trace(groups[rank], calls[rank]) for rank in range(4)})

    assert [(one.group, one.absent, one.cause) for one in found] == [
        ("d1", (1,), (1,)),
        ("t0", (1,), (1,)),
        ("d0", (0,), ()),
    ]


def test_in_a_pipeline_the_stage_that_waits_for_none_is_the_cause():
    """Stage 2 computes: the one before waits for its gradient, that before it in turn, the last for input."""
    waits = {0: call(2, "started", operation="recv", peer=1), 1: call(2, "started", operation="recv", peer=2)}
    waits |= {3: call(1, "started", operation="recv", peer=2)}
    groups = {"0": (0, 1, 2, 3)}
    traces = {rank: Trace(groups, [waits[rank]] if rank in waits else []) for rank in range(4)}

    assert [(one.members, one.cause) for one in standstills(traces)] == [
        ((1, 2), (2,)),
        ((2, 3), (2,)),
        ((0, 1), ()),
    ]


def test_a_send_and_its_receive_have_met():
    """Neither is waited for: the link does not move the data."""
    groups = {"0": (0, 1)}
    pair = {0: call(1, "started", operation="send", peer=1), 1: call(1, "started", operation="recv", peer=0)}

    found = standstills({rank: Trace(groups, [one]) for rank, one in pair.items()})

    assert [one.awaited for one in found] == [frozenset(), frozenset()]
