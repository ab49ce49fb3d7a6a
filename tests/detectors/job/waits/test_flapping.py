"""Transfers that are long in single steps: which are found, and which explanations take their place."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from detectors.job.waits.flapping import FlappingTransfers
from detectors.peers.step_times import StepTimes

RANKS, STEPS, ONSET, TRANSFER = 32, 500, 150, 0.1
NONE = np.full(RANKS, np.nan)

# Transfers beside waits, transfers that contain them, and neither.
TOLD = {"transfers": ("compute", "wait", "comm"), "waits": ("compute", "comm"), "rest": ("compute", "wait")}


def steps(longer, *, part="comm", told=("compute", "wait", "comm"), ranks=None, seed=3):
    """Steps of 1.1 s, by ``longer`` seconds at each number in ``part`` of ``ranks`` (None: of all)."""
    rng, ts = np.random.default_rng(seed), 1_795_160_000.0
    concerned = np.isin(np.arange(RANKS), np.arange(RANKS) if ranks is None else ranks)
    for number in range(STEPS):
        held: dict[str, Any] = {
            "compute": rng.normal(1.0, 0.01, RANKS),
            "comm": np.full(RANKS, rng.normal(TRANSFER, 0.002)),
            "data": np.zeros(RANKS),
            "checkpoint": np.zeros(RANKS),
        }
        held[part] = held[part] + np.where(concerned, longer(number), 0.0)
        own = sum(held.values())
        step = np.full(RANKS, own.max() + 0.01)
        held["wait"] = own.max() - own
        if "wait" not in told:
            held["comm"] = held["comm"] + held["wait"]
        ts += step[0]
        read: dict[str, Any] = {name: held[name] if name in told else NONE for name in held}
        yield StepTimes(number=number, ts=np.full(RANKS, ts), step=step, tokens=NONE, **read)


def watched(many):
    """Return what is found after each step."""
    watch, found = FlappingTransfers(), list[Any]()
    for times in many:
        watch.update(times)
        found.append(watch.found)
    return found


def at_random(share, seconds, *, first=ONSET, last=STEPS):
    """A step in so many, with no pattern, is ``seconds`` longer."""
    long = np.random.default_rng(5).random(STEPS) < share
    long[:first] = long[last:] = False
    return lambda number: seconds * long[number]


def every(period, seconds, *, first=0):
    return lambda number: seconds * (number >= first and (number - first) % period == 0)


@pytest.mark.parametrize(("idling", "told"), TOLD.items())
@pytest.mark.parametrize(("share", "seconds"), [(0.04, 2.0), (0.12, 1.0), (0.3, 0.3)])
def test_transfers_that_are_long_again_and_again_are_found(idling, told, share, seconds):
    """With when it began, how often they are, for how long, and what the job loses."""
    longer = at_random(share, seconds)
    many = list(steps(longer, told=told))
    found = watched(many)
    last, at = found[-1], np.flatnonzero([longer(n) > 0 for n in range(STEPS)])
    assert last is not None
    assert last.idling == idling
    assert last.onset == many[at[0]].ts[0]
    assert last.count == 1 + np.count_nonzero(np.diff(at) > 1)
    assert last.lost == pytest.approx(seconds * len(at), rel=0.1)
    lasted = many[at[-1]].ts[0] - last.onset_lo
    assert last.job_slowdown == pytest.approx(lasted / (lasted - last.lost), rel=0.02)
    assert next(n for n, f in enumerate(found) if f) <= at[0] + max(8 / share, 40)


def test_they_began_with_the_first_where_they_come_more_often_later():
    long = ONSET + np.flatnonzero(np.random.default_rng(4).random(STEPS - ONSET) < 0.12)
    many = list(steps(lambda number: 1.0 * (number in long)))
    first = next(found for found in watched(many) if found)
    assert first.onset == many[long[0]].ts[0]


def test_a_link_of_one_stage_is_found_by_its_transfers_and_the_waits_of_the_others():
    last = watched(steps(at_random(0.1, 1.0), ranks=range(16)))[-1]
    assert (last.idling, last.ratio) == ("transfers", pytest.approx(11.0, rel=0.05))


def test_it_is_over_once_they_have_not_come_for_twice_the_longest_distance():
    longer = at_random(0.12, 1.0, last=300)
    found = watched(steps(longer))
    at = np.flatnonzero([longer(n) > 0 for n in range(STEPS)])
    ended = 1 + max(n for n, f in enumerate(found) if f)
    assert ended - at[-1] == pytest.approx(2 * np.diff(at).max(), abs=2)


@pytest.mark.parametrize(("idling", "told"), TOLD.items())
@pytest.mark.parametrize(
    "longer",
    [
        every(8, 2.0, first=7),
        every(10, 1.0, first=ONSET),
        at_random(0.1, 1.0, first=0),
        at_random(0.1, 0.2),
        at_random(0.01, 1.0),
        lambda number: 1.0 * (number >= ONSET),
        lambda number: 1.0 * (ONSET <= number < ONSET + 12),
        lambda number: 1.0 * (number in (150, 163, 190, 199)),
        lambda number: 1.0 * (number in (150, 152, 157, 160, 167, 171, 173)),
    ],
    ids=[
        "exchanges every few steps",
        "a schedule from some step on",
        "from the start",
        "little lost",
        "seldom",
        "for good",
        "once",
        "four times",
        "within a moment",
    ],
)
def test_what_has_another_explanation_is_not_found(idling, told, longer):
    assert not any(watched(steps(longer, told=told)))


@pytest.mark.parametrize(("idling", "told"), TOLD.items())
@pytest.mark.parametrize("ranks", [None, [5], range(8)], ids=["all", "one", "a node"])
@pytest.mark.parametrize("part", ["compute", "checkpoint"])
def test_ranks_that_are_waited_for_make_no_transfer_long(part, ranks, idling, told):
    """Collections, stalls, long batches and saving: of one rank the others' transfers contain the wait."""
    longer = at_random(0.12, 1.0)
    assert not any(watched(steps(longer, part=part, told=(*told, "checkpoint"), ranks=ranks)))


@pytest.mark.parametrize(("idling", "told"), TOLD.items())
def test_more_work_has_longer_transfers(idling, told):
    """As a long batch has, where activations are exchanged."""
    longer = at_random(0.3, 1.0)
    many = [
        replace(
            times, step=times.step + 0.3 * longer(times.number), comm=times.comm + 0.3 * longer(times.number)
        )
        for times in steps(longer, part="compute", told=told)
    ]
    assert not any(watched(many))


def test_transfers_that_always_scatter_are_not_found():
    """Longer from some step on, but all the same as before."""
    scatter = np.random.default_rng(9).exponential(0.1, STEPS)
    assert not any(watched(steps(lambda number: scatter[number] * (1.0 if number < ONSET else 1.3))))


@pytest.mark.parametrize(("idling", "told"), TOLD.items())
@pytest.mark.parametrize("ranks", [None, range(20)], ids=["all", "most"])
def test_stalls_of_the_storage_are_no_transfers(ranks, idling, told):
    longer = at_random(0.12, 1.0)
    assert not any(watched(steps(longer, part="data", told=(*told, "data"), ranks=ranks)))


@pytest.mark.parametrize(("idling", "expected"), [("transfers", True), ("waits", False)])
def test_all_may_wait_for_a_rank_that_is_not_read_where_transfers_contain_that(idling, expected):
    many = list(steps(at_random(0.12, 1.0), told=TOLD[idling]))
    for times in many:
        times.comm[7] = np.nan
    assert any(watched(many)) == expected


def test_waits_that_are_long_while_transfers_are_not_are_none():
    """As for a rank that does not log."""
    longer = at_random(0.12, 1.0)
    many = [
        replace(times, step=times.step + longer(times.number), wait=times.wait + longer(times.number))
        for times in steps(lambda number: 0.0)
    ]
    assert not any(watched(many))


def test_transfers_that_usually_take_next_to_no_time_have_a_ratio_to_one_per_cent_of_the_step():
    """Transfers that contain the waiting are none at all on the rank that the others wait for."""
    many = [
        replace(times, comm=times.comm - np.fmin.reduce(times.comm) * (times.number not in LONG))
        for times in steps(lambda number: 2.0 * (number in LONG), told=TOLD["waits"])
    ]
    found = [one for one in watched(many) if one is not None]
    assert found
    assert 50.0 < found[-1].ratio < 300.0


LONG = frozenset(np.flatnonzero([at_random(0.1, 1.0)(number) for number in range(STEPS)]).tolist())
