from streams.progress import Presence, Progress, Stall


def test_a_stall_is_noticed_at_its_deadline_however_late_one_looks():
    """The moment of notice is the last step plus the allowance, once."""
    progress = Progress()
    for n in range(100):
        progress.new_step(float(n))
    assert progress.look(113.0) is None
    stall = progress.look(500.0)
    assert stall == Stall(since=99.0, at=114.0)
    assert progress.look(600.0) is None
    progress.new_step(700.0)
    assert progress.stalled is None


def test_pauses_seen_before_are_allowed_for():
    """A job that once paused for a minute is not called hung after half of one."""
    progress = Progress()
    ts = 0.0
    for n in range(100):
        ts += 60.0 if n == 50 else 1.0
        progress.new_step(ts)
    assert progress.look(ts + 100.0) is None
    assert progress.look(ts + 121.0) is not None


def test_nothing_is_said_before_the_rhythm_is_known():
    """Twenty gaps are learnt first."""
    progress = Progress()
    for n in range(10):
        progress.new_step(float(n))
    assert progress.look(1e12) is None


def test_a_rank_missing_while_the_others_advance_is_named_and_comes_back():
    """Enough missed steps in a row make a rank silent; its next row ends that."""
    presence, everyone = Presence(), set(range(16))
    for n in range(50):
        assert presence.step(everyone, float(n)) == ([], [])
    named = [rank for n in range(20) for rank in presence.step(everyone - {5}, 50.0 + n)[0]]
    assert named == [5]
    assert presence.last_seen(5) == 49.0
    assert presence.step(everyone, 80.0) == ([], [5])


def test_random_losses_are_no_silence():
    """A stream that loses a third of its rows accuses nobody."""
    presence, everyone = Presence(), set(range(16))
    presence.step(everyone, 0.0)
    for n in range(1, 400):
        reported = {r for r in everyone if (r * 7919 + n * 104729) % 97 > 32}
        assert presence.step(reported, float(n))[0] == []


def test_many_silent_at_once_is_a_telemetry_fault():
    """When a quarter of the ranks stops reporting together, no rank is named."""
    presence, everyone = Presence(), set(range(16))
    for n in range(50):
        presence.step(everyone, float(n))
    for n in range(20):
        assert presence.step(everyone - {0, 1, 2, 3}, 50.0 + n)[0] == []
