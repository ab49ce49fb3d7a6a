import pytest

from detectors.job.missing_rows import MissingRows
from detectors.job.progress import FORGET_SECONDS, REPEAT_SECONDS, Stall, StallWatch


def stepped(gaps):
    """A job whose steps came so far apart, and the time of its last one."""
    progress, ts = StallWatch(), 0.0
    for n, gap in enumerate(gaps):
        ts += gap
        progress.new_step(n, ts)
    return progress, ts


def waits(progress, ts):
    """How long after ``ts`` a stall is suspected, noticed and certain."""
    # A certain stall is repeated while it lasts.
    stalls = list({(s.since, s.score, s.certain): s for s in reversed(progress.look(ts + 1e4))}.values())[
        ::-1
    ]
    assert all(stall.since == ts for stall in stalls)
    assert [stall.certain for stall in stalls] == [False] * (len(stalls) - 1) + [True]
    return [stall.at - ts for stall in stalls]


def test_a_stall_is_noticed_at_its_deadlines_however_late_one_looks():
    """Each deadline counts from the last step and is reported once; the first is below the threshold."""
    progress, ts = stepped([1.0] * 100)
    assert progress.look(ts + 11.9) == []
    assert progress.look(ts + 12.0) == [Stall(ts, ts + 12.0, score=0.8)]
    assert progress.look(ts + 14.9) == []
    assert progress.look(ts + 500.0) == [
        Stall(ts, ts + 15.0),
        Stall(ts, ts + 120.0, certain=True, alone=True),
    ]
    assert progress.look(ts + 600.0) == []
    progress.new_step(100, ts + 600.0)
    assert waits(progress, ts + 600.0)


@pytest.mark.parametrize("every", [1.0, 1000.0, 1e6])
def test_a_certain_stall_is_repeated_at_times_of_its_own_for_a_day(every):
    """However often one looks: 120 s after the last step, and every quarter of an hour from then on."""
    progress, ts = stepped([1.0] * 100)
    looked = (ts + every * n for n in range(1, int(2 * FORGET_SECONDS / every) + 2))
    certain = [stall for at in looked for stall in progress.look(at) if stall.certain]
    assert certain == [
        Stall(ts, ts + 120.0 + REPEAT_SECONDS * n, certain=True, alone=True)
        for n in range(int((FORGET_SECONDS - 120.0) / REPEAT_SECONDS) + 1)
    ]


def test_a_step_that_comes_in_late_is_followed_by_its_own_stall():
    """Deadlines already past when the last step comes in are reported with the next look."""
    progress, ts = stepped([1.0] * 100)
    assert len(progress.look(ts + 90.0)) == 2
    progress.new_step(100, ts + 1.0)
    assert progress.look(ts + 90.0) == [Stall(ts + 1.0, ts + 13.0, score=0.8), Stall(ts + 1.0, ts + 16.0)]


@pytest.mark.parametrize(
    ("step", "expected"), [(0.5, [12.0, 15.0]), (3.0, [12.0, 15.0]), (5.0, [20.0, 25.0])]
)
def test_long_steps_need_long_allowances(step, expected):
    """Four usual steps are suspicious and five too many."""
    assert waits(*stepped([step] * 100))[:2] == expected


@pytest.mark.parametrize("updates", [1, 2])
def test_rollouts_that_come_every_few_steps_are_no_stalls(updates):
    """A job that generates for a minute or two between updates of 10 s waits for a few such minutes."""
    rollouts = [60.0, 110.0, 75.0, 60.0, 90.0]
    gaps = [gap for n in range(40) for gap in (*[10.0] * updates, rollouts[n % len(rollouts)])]
    for seen in range(21, len(gaps)):
        progress, ts = stepped(gaps[:seen])
        assert progress.look(ts + gaps[seen] - 0.1) == []
    assert waits(progress, ts)[0] >= 200.0


@pytest.mark.parametrize(
    ("delays", "expected"),
    [([1.9], [12.0, 15.0, 120.0]), ([0.1, 4.0, 10.0], [20.0, 23.0, 128.0])],
    ids=["every second", "every ten seconds"],
)
def test_a_step_may_wait_to_be_sent(delays, expected):
    """Where rows are sent every ten seconds, that long without one means no more."""
    progress = StallWatch()
    for n in range(100):
        progress.new_step(n, float(n), sent=n + delays[n % len(delays)])
    assert waits(progress, 99.0) == expected


def test_an_outage_of_the_senders_is_not_how_they_send():
    """Two rows that were sent a minute late change nothing."""
    progress = StallWatch()
    for n in range(100):
        progress.new_step(n, float(n), sent=n + (60.0 if n in (70, 80) else 1.0))
    assert waits(progress, 99.0) == [12.0, 15.0, 120.0]


@pytest.mark.parametrize(
    ("gaps", "expected"),
    [([1.0] * 100, 120.0), ([1.0] * 1802, 60.0), ([1.0] * 50 + [40.0] + [1.0] * 10, 120.0)],
    ids=["young", "known-for-half-an-hour", "one-pause"],
)
def test_a_job_known_for_long_is_soon_certain_to_hang(gaps, expected):
    """A minute suffices after half an hour without such a pause, else two."""
    assert waits(*stepped(gaps))[-1] == expected


@pytest.mark.parametrize("seconds", [10.0, 40.0])
def test_a_job_that_paused_often_is_certain_to_hang_where_no_pause_is_due(seconds):
    """Three pauses are a history: between two a minute suffices, where one is due twice the longest too."""
    every = [seconds, *[1.0] * 99]
    progress, ts = stepped([1.0] * 100 + every * 4)
    assert waits(progress, ts)[-1] == max(60.0, 2 * seconds)
    progress, ts = stepped([1.0] * 100 + every * 4 + every[:50])
    assert waits(progress, ts)[-1] == 60.0


def test_pauses_seen_before_are_allowed_for():
    """A job that once paused for a minute is not called hung after half of one."""
    progress, ts = stepped([60.0 if n == 50 else 1.0 for n in range(100)])
    assert waits(progress, ts) == [120.0]


@pytest.mark.parametrize("every", [50, 100])
def test_a_stall_between_two_checkpoints_is_no_checkpoint(every):
    """A job with 20 s checkpoints is missed like any other where none is due, and after 40 s where one is."""
    progress, ts = stepped([20.0 if n and n % every == 0 else 1.0 for n in range(10 * every)])
    for n in range(10 * every, 11 * every):
        due = n % every >= every - 2
        ts += 20.0 if n % every == 0 else 1.0
        progress.new_step(n, ts)
        assert progress.look(ts + 11.9) == []
        if n % every > 1:
            assert waits(progress, ts) == ([40.0, 60.0] if due else [12.0, 15.0, 60.0])
            progress.new_step(n, ts)


def test_a_young_job_is_given_time():
    """Until sixty gaps are known the allowance is threefold, but for machines that all spin for nothing."""
    assert waits(*stepped([1.0] * 40)) == [12.0, 45.0, 120.0]


@pytest.mark.parametrize(
    ("gaps", "expected"), [([], 600.0), ([1.0] * 19, 600.0), ([90.0, *[1.0] * 8], 900.0)]
)
def test_before_the_rhythm_is_known_only_what_lasts_is_a_stall(gaps, expected):
    """Until twenty gaps are learnt it takes ten minutes, and ten times the longest step: some compile."""
    assert waits(*stepped([5.0, *gaps])) == [expected]


@pytest.mark.parametrize(
    ("before", "gaps", "expected"),
    [
        ([1.0] * 50, [1.0] * 8, [120.0, 600.0]),
        ([90.0, *[1.0] * 50], [1.0] * 8, [180.0, 600.0]),
        ([20.0] * 50, [20.0] * 8, [200.0, 600.0]),
        ([1.0] * 10, [1.0] * 8, [600.0]),
    ],
    ids=["quick", "compiles", "slow-steps", "unknown"],
)
def test_a_later_attempt_begins_with_the_pace_of_the_one_before(before, gaps, expected):
    """Its first stall counts alone after ten usual gaps, or twice the longest of first steps; it is certain
    no sooner."""
    progress, ts = StallWatch(stepped([1.0, *before])[0]), 0.0
    for n, gap in enumerate([5.0, *gaps]):
        ts += gap
        progress.new_step(n, ts)
    assert waits(progress, ts) == expected
    progress.new_step(99, ts + 1.0)
    assert all(stall.alone for stall in progress.look(ts + 5000.0))


def test_a_young_job_may_pause_twice_its_longest_pause():
    """Certain it stands still only after three times as long; as information two minutes suffice."""
    progress, ts = stepped([1.0] * 30 + [80.0] + [1.0] * 5)
    stalls = progress.look(ts + 500.0)
    assert [(s.at - ts, s.alone, s.certain, s.score < 1.0) for s in stalls] == [
        (120.0, True, False, True),
        (160.0, True, False, True),
        (480.0, True, True, False),
    ]


@pytest.mark.parametrize(
    ("pauses", "alone"),
    [([200.0], 120), ([200.0] * 2, 120), ([200.0] * 3, 200), ([140.0, 200.0, 260.0], 140)],
)
def test_steps_suffice_once_a_stop_is_longer_than_any_usual_pause(pauses, alone):
    """Two that came by chance are no habit; machines that only send nothing count from twice the longest."""
    gaps = [1.0] * 100
    for steps, pause in zip((37, 61, 83), pauses, strict=False):
        gaps += [pause, *[1.0] * steps]
    progress, ts = stepped(gaps)
    stalls = progress.look(ts + 900.0)
    assert [(round(s.at - ts), s.alone, s.score < 1.0) for s in stalls] == [
        (alone, True, True),
        (2 * max(pauses), True, False),
    ]


@pytest.mark.parametrize(("step", "alone"), [(1.0, 120), (30.0, 120), (60.0, 240)])
def test_steps_of_a_minute_suffice_once_four_are_missed(step, alone):
    """What is information does not wait for the fifth."""
    progress, ts = stepped([step] * 100)
    assert next(s.at - ts for s in progress.look(ts + 900.0) if s.alone) == alone


@pytest.mark.parametrize(("step", "expected"), [(1.0, 60.0), (10.0, 60.0), (50.0, 200.0)])
def test_ranks_that_did_not_arrive_are_waited_for_four_steps(step, expected):
    """A minute at least, in which late rows mostly come."""
    progress, ts = stepped([step] * 100)
    assert progress.missing_due - ts == expected


def test_a_rank_missing_while_the_others_advance_is_named_and_comes_back():
    """Enough missed steps in a row make a rank silent; its next row ends that."""
    presence, everyone = MissingRows(), set(range(16))
    for n in range(50):
        assert presence.update(everyone, float(n)) == ([], [])
    named = [rank for n in range(20) for rank in presence.update(everyone - {5}, 50.0 + n)[0]]
    assert named == [5]
    assert presence.last_seen(5) == 49.0
    assert presence.update(everyone, 80.0) == ([], [5])


def test_random_losses_are_no_silence():
    """A stream that loses a third of its rows makes no rank suspect."""
    presence, everyone = MissingRows(), set(range(16))
    presence.update(everyone, 0.0)
    for n in range(1, 400):
        reported = {r for r in everyone if (r * 7919 + n * 104729) % 97 > 32}
        assert presence.update(reported, float(n))[0] == []


def test_many_silent_at_once_is_a_telemetry_fault():
    """When a quarter of the ranks stops reporting together, it is no fault of theirs, unless they share a
    machine."""
    presence, everyone = MissingRows(), set(range(16))
    for n in range(50):
        presence.update(everyone, float(n))
    gone = [rank for n in range(20) for rank in presence.update(everyone - {0, 1, 2, 3}, 50.0 + n)[0]]
    assert gone == [0, 1, 2, 3]
    assert (presence.too_many(gone), presence.too_many(gone, of_one_machine=True)) == (True, False)


def test_steps_that_may_be_lost_are_not_missed():
    """After a pause of the process a stall counts from its end, and the pause is no gap between steps."""
    progress, ts = stepped([1.0] * 100)
    progress.resume(ts + 300.0)
    assert progress.look(ts + 311.9) == []
    assert progress.look(ts + 312.0) == [Stall(ts + 300.0, ts + 312.0, score=0.8)]
    for n, at in enumerate((299.5, 300.5, 301.5)):
        progress.new_step(380 + n, ts + at)
    progress.resume(ts + 100.0)
    assert waits(progress, ts + 301.5) == [12.0, 15.0, 120.0]
