"""Suspicions in shadow: what they lead to is recorded apart, and nothing else is moved by them."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alerts.finding import Finding
from streams.cluster.stage import FindingStage
from tests.streams.cluster.test_stage import T0, hot, slow
from tests.streams.cluster.test_stage_order import delivery, job_side, node_side, stream


def play(steps, *, until=30.0):
    """Return the last version of each finding by (dedup key, whether in shadow)."""
    stage = FindingStage()
    versions: list[Finding] = []
    for step in steps:
        versions += stage.tick(step) if isinstance(step, float) else stage.process(step)
    versions += stage.tick(T0 + until)
    return {(f.dedup_key, f.shadow): f for f in versions}


def states(found):
    return {(f.kind, f.status, f.shadow) for f in found.values()}


def shadow(suspicion):
    return msgspec.structs.replace(suspicion, shadow=True)


def test_a_finding_in_shadow_opens_under_a_name_of_its_own():
    """It is what would have been found, with another key and another id."""
    plain = play([slow(overwhelming=True)])
    marked = play([shadow(slow(overwhelming=True))])
    [(key, _)], [(other, in_shadow)] = plain, marked
    assert (other, in_shadow) == (f"{key}/shadow", True)
    assert states(marked) == {("straggler.fail_slow", "open", True)}
    one, two = next(iter(plain.values())), next(iter(marked.values()))
    assert one.id != two.id
    assert (one.title, one.onset, one.confidence) == (two.title, two.onset, two.confidence)


def test_what_is_in_shadow_corroborates_nobody():
    """Two families open a finding; when the second is in shadow, the first stays a suspicion."""
    assert ("straggler.fail_slow", "open", False) in states(play([slow(), hot()]))
    assert ("straggler.fail_slow", "open", False) not in states(play([slow(), shadow(hot())]))


def test_what_is_in_shadow_is_corroborated_by_others():
    """So it shows what the detector would be worth, whichever of the two came first."""
    for steps in ([slow(ts=10.0), shadow(hot(ts=12.0))], [shadow(hot(ts=10.0)), slow(ts=12.0)]):
        marked = [s for s in states(play(steps)) if s[2]]
        assert marked == [("throttle.thermal", "suspected", True)]
    steps = [shadow(slow()), hot()]
    assert ("straggler.fail_slow", "open", True) in states(play(steps))


def test_what_others_tell_already_does_not_open_in_shadow():
    """A throttle in shadow beside the slow rank it explains belongs to that finding."""
    found = play([slow(overwhelming=True), shadow(hot())])
    assert ("throttle.thermal", "suspected", True) in states(found)
    [told] = [f for f in found.values() if f.shadow]
    assert told.group_key == next(f.dedup_key for f in found.values() if not f.shadow)


def test_a_clear_ends_what_was_raised_in_shadow():
    """Clears are never marked, and reach both."""
    found = play([shadow(slow(overwhelming=True)), slow(20.0, state="clear")], until=1000.0)
    assert states(found) == {("straggler.fail_slow", "resolved", True)}


@pytest.mark.parametrize("at", range(3))
def test_what_was_on_trial_at_some_time_is_in_shadow_however_it_comes(at):
    """Also where the later ones come late, so that no state between is ever shown."""
    reports = [hot(ts=float(ts)) for ts in range(3)]
    reports[at] = shadow(reports[at])
    in_order = play(reports, until=200_000.0)
    assert play([reports[0], T0 + 2.0, *reports[1:]], until=200_000.0) == in_order
    assert sorted(in_shadow for _, in_shadow in in_order) == [False, True]


def published(steps):
    """Return what ``play`` does, as JSON: which version is the last is not part of it."""
    return {key: f.to_json() for key, f in play(steps, until=200_000.0).items()}


@st.composite
def partly_in_shadow(draw, batches):
    """The batches with some suspicions marked."""
    marked = []
    for batch in batches:
        marked.append([shadow(s) if s.state != "clear" and draw(st.booleans()) else s for s in batch])
    return marked


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_nothing_in_shadow_moves_what_is_not(data):
    """However they interleave, the other findings are those of a run without anything in shadow."""
    job = data.draw(partly_in_shadow(data.draw(stream(job_side()))))
    node = data.draw(partly_in_shadow(data.draw(stream(node_side()))))
    steps = data.draw(delivery(job, node))
    bare = [s for s in steps if isinstance(s, float) or not s.shadow]
    with_shadow = {k: f for k, f in play(steps, until=2000.0).items() if not f.shadow}
    assert with_shadow == play(bare, until=2000.0)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_findings_in_shadow_do_not_depend_on_the_delivery(data):
    """Interleaving, repeats and ticks change nothing in them either."""
    job = data.draw(partly_in_shadow(data.draw(stream(job_side()))))
    node = data.draw(partly_in_shadow(data.draw(stream(node_side()))))
    straight = sorted((s for batch in (*job, *node) for s in batch), key=lambda s: s.ts)
    mixed = data.draw(delivery(job, node))
    assert published(mixed) == published(straight)
