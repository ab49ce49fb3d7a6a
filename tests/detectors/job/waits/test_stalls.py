"""Machines that stall now and then: which are reported, and which explanations take their place."""

from typing import Any

import numpy as np
import pytest

from detectors.job.waits.stalls import Stalls
from detectors.peers.step_times import StepTimes

RANKS, PER_MACHINE, STEPS, CULPRIT = 32, 8, 600, 19
MACHINES = np.arange(RANKS) // PER_MACHINE
NONE = np.full(RANKS, np.nan)


def steps(stalls, *, part="compute", parts=("compute", "wait"), seed=3):
    """Synchronous steps of half a second; ``stalls`` gives the seconds of each rank at a step number."""
    rng, ts = np.random.default_rng(seed), 1_795_160_000.0
    for number in range(STEPS):
        compute = rng.normal(0.5, 0.005, RANKS)
        more = np.zeros(RANKS)
        for rank, seconds in stalls(number).items():
            more[rank] = seconds
        own = compute + more
        step = np.full(RANKS, own.max() + 0.05)
        ts += step[0]
        held: dict[str, Any] = {
            "compute": own if part == "compute" else compute,
            "wait": own.max() - own,
            "data": 0.01 + (more if part == "data" else 0.0),
            "comm": own.max() - own + 0.05,
            "checkpoint": more if part == "checkpoint" else np.zeros(RANKS),
        }
        read: dict[str, Any] = {name: held[name] if name in parts else NONE for name in held}
        yield StepTimes(number=number, ts=np.full(RANKS, ts), step=step, tokens=NONE, **read)


def told(stalls, *, machines=MACHINES, **more):
    """What is reported, with the number of the step, and what is found after the last one."""
    watch, found = Stalls(machines), list[Any]()
    for times in steps(stalls, **more):
        if watch.update(times):
            found.append((times.number, watch.found))
    return found, watch.found


def every(period, *ranks, first=150, seconds=5.0):
    return lambda number: dict.fromkeys(
        ranks, seconds if number >= first and (number - first) % period == 0 else 0.0
    )


@pytest.mark.parametrize(
    ("part", "parts"),
    [
        ("compute", ("compute", "wait")),
        ("compute", ("compute",)),
        ("data", ("compute", "data")),
        ("data", ("compute", "wait", "data")),
        ("rest", ("compute", "wait")),
        ("rest", ("wait",)),
        ("rest", ("comm",)),
    ],
)
def test_a_rank_that_alone_stalls_again_and_again_is_told(part, parts):
    """At its fourth or fifth stall, in whatever part of a step it is; that it is loading, where it is."""
    (first, *_), last = told(every(50, CULPRIT), part=part, parts=parts)
    number, found = first
    assert number in (150 + 3 * 50, 150 + 4 * 50)
    assert (found.ranks, found.count) == ((CULPRIT,), 1 + (number - 150) // 50)
    assert found.seconds == pytest.approx(5.0, abs=0.1)
    assert found.loading == (part == "data")
    assert last.share == pytest.approx(5.0 / (50 * 0.55), abs=0.05)


@pytest.mark.parametrize(("together", "expected"), [(8, 8), (7, 8), (3, 1)])
def test_ranks_of_one_machine_that_stall_together_are_told_as_all_of_it(together, expected):
    """One that stalls longest with a few others is named by itself."""
    ranks = range(2 * PER_MACHINE, 2 * PER_MACHINE + together)
    _, found = told(every(40, *ranks))
    assert set(MACHINES[list(found.ranks)]) == {2}
    assert len(found.ranks) == expected


def test_ranks_of_one_machine_that_stall_by_turns_are_told_as_all_of_it():
    turns = [2 * PER_MACHINE + k for k in range(PER_MACHINE)]

    def stalls(number):
        turn, at = divmod(number - 100, 20)
        return {turns[turn % PER_MACHINE]: 3.0} if number >= 100 and at == 0 else {}

    _, found = told(stalls)
    assert found.ranks == tuple(turns)


@pytest.mark.parametrize(
    "stalls",
    [
        every(50, CULPRIT, first=50),
        every(50, 3, CULPRIT),
        every(50, *range(RANKS)),
        every(100, CULPRIT, seconds=2.0),
        every(50, CULPRIT, seconds=0.4),
        lambda number: {int(number * 7 % RANKS): 5.0} if number >= 150 and number % 25 == 0 else {},
    ],
    ids=["from the start", "two machines", "all", "cheap", "short", "another one each time"],
)
def test_what_others_do_too_or_is_there_from_the_start_is_not(stalls):
    assert told(stalls) == ([], None)


def test_saving_is_no_stall():
    assert told(every(50, CULPRIT), part="checkpoint", parts=("wait", "checkpoint")) == ([], None)


@pytest.mark.parametrize(("machine", "named"), [(2, True), (0, False)])
@pytest.mark.parametrize("of", [PER_MACHINE, 1])
def test_a_machine_that_saves_for_longer_from_the_start_stalls(machine, named, of):
    """The first machine, or a rank, may save what the others do not have."""

    def saving(number):
        slow = [rank for rank in range(RANKS) if MACHINES[rank] == machine][:of]
        return {rank: 2.0 + 5.0 * (rank in slow) for rank in range(RANKS)} if number % 50 == 0 else {}

    _, found = told(saving, part="checkpoint", parts=("compute", "wait", "checkpoint"))
    assert (found is not None) == (named and of == PER_MACHINE)


@pytest.mark.parametrize(
    ("rank", "seconds", "named"),
    [(9, 7.0, True), (1, 7.0, True), (8, 7.0, False), (0, 7.0, False), (9, 3.9, False)],
)
def test_a_rank_that_saves_for_longer_than_its_share_from_the_start_stalls(rank, seconds, named):
    """Unless it is the first of its machine, which may save for it, or its part may be twice as large."""

    def saving(number):
        return {r: seconds if r == rank else 2.0 for r in range(RANKS)} if number % 50 == 0 else {}

    _, found = told(saving, part="checkpoint", parts=("compute", "wait", "checkpoint"))
    assert (found and found.ranks) == ((rank,) if named else None)


def test_it_is_over_when_two_stalls_are_missed():
    stalls = every(50, CULPRIT)
    found, last = told(lambda number: stalls(number) if number < 420 else {})
    assert found[-1][0] == 400
    assert last is None


def test_steps_in_a_row_are_one_stall():
    found, _ = told(lambda number: {CULPRIT: 5.0} if number >= 150 and number % 50 < 3 else {})
    assert found[-1][1].count == 1 + (found[-1][0] - 150) // 50


@pytest.mark.parametrize(("longer", "expected"), [(5.0, tuple(np.flatnonzero(MACHINES == 2))), (0.2, None)])
def test_a_machine_that_saves_for_longer_than_all_others_stalls(longer, expected):
    """All ranks save in every 50th step, those of one machine for longer since a while."""

    def saving(number):
        late = longer if number >= 150 else 0.0
        return {rank: 2.0 + late * (MACHINES[rank] == 2) for rank in range(RANKS)} if number % 50 == 0 else {}

    _, found = told(saving, part="checkpoint", parts=("compute", "wait", "checkpoint"))
    assert (found and found.ranks) == expected


@pytest.mark.parametrize("seed", range(4))
def test_the_longest_of_uneven_batches_are_no_stalls(seed):
    """The ranks with the last parts of sequences always take longest, some of them by chance more often."""
    batch = np.exp(0.3 * np.random.default_rng(seed).normal(size=(STEPS, RANKS // 4)))

    def longer(number):
        return {rank: 0.7 * batch[number, rank // 4] ** 2 for rank in range(3, RANKS, 4)}

    assert told(longer, seed=seed) == ([], None)
    # Nor do they hide a machine that does.
    found, _ = told(
        lambda n: {**longer(n), **{rank: s for rank, s in every(40, 16, seconds=12.0)(n).items() if s}},
        seed=seed,
    )
    assert {stalling.ranks for _, stalling in found} == {(16,)}


def test_a_step_of_which_nothing_was_read_is_passed_over():
    watch = Stalls(MACHINES)
    unread = StepTimes(
        number=0, ts=np.full(RANKS, 1e9), step=NONE, compute=NONE, wait=NONE, data=NONE, comm=NONE,
        checkpoint=NONE, tokens=NONE,
    )  # fmt: skip
    for number, times in enumerate(steps(every(40, CULPRIT))):
        assert not watch.update(unread)
        if number < 400:
            watch.update(times)
    assert watch.found is not None
    assert watch.found.ranks == (CULPRIT,)


@pytest.mark.parametrize("seed", range(3))
def test_a_machine_with_most_of_the_ranks_has_most_of_the_stalls(seed):
    """Of three quarters of the ranks, one that is drawn at random stalls now and then."""
    ranks = np.random.default_rng(seed).integers(RANKS, size=STEPS)

    def stalls(number):
        return {int(ranks[number]): 3.0} if number >= 100 and number % 20 == 0 else {}

    assert told(stalls, machines=np.where(MACHINES == 3, 1, 0)) == ([], None)
