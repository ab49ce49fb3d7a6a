import msgspec
from hypothesis import given
from hypothesis import strategies as st

from slowrank.telemetry import Subject, Suspicion
from streams.open_suspicions import OpenSuspicions


def suspicion(ts, **rest):
    fields = {
        "cluster": "c",
        "detector": "d",
        "family": "timing",
        "kind": "straggler.fail_slow",
        "state": "raise",
        "subject": Subject(type="rank", cluster="c", rank=1),
        "ts": ts,
        "onset": ts - 5,
        "onset_lo": ts - 6,
        "onset_hi": ts - 4,
        "score": 1.0,
        "log_likelihood_ratio": 5.0,
        **rest,
    }
    return msgspec.convert(fields, Suspicion)


def test_raises_once_freshens_when_due_and_clears():
    """The first is raised, later ones pass after the interval with its onset, the end is said once."""
    ledger = OpenSuspicions[str](30.0)
    assert [s.state for s in ledger.put("a", suspicion(100.0))] == ["raise"]
    assert ledger.put("a", suspicion(120.0)) == []
    (update,) = ledger.put("a", suspicion(130.0))
    assert (update.state, update.onset, update.ts) == ("update", 95.0, 130.0)
    (clear,) = ledger.clear("a", 140.0)
    assert (clear.state, clear.ts, clear.onset) == ("clear", 140.0, 95.0)
    assert ledger.clear("a", 141.0) == []


def test_nothing_ends_before_it_was_raised():
    """A stall is told at its deadline, and the step that ends it may have been made before."""
    ledger = OpenSuspicions[str](30.0)
    ledger.put("a", suspicion(100.0))
    (clear,) = ledger.clear("a", 95.0)
    assert (clear.state, clear.ts) == ("clear", 100.0)


def test_becoming_overwhelming_is_said_at_once_and_stays():
    """Escalation does not wait for the interval, and weaker evidence later does not take it back."""
    ledger = OpenSuspicions[str](30.0)
    ledger.put("a", suspicion(100.0))
    (escalated,) = ledger.put("a", suspicion(101.0, overwhelming=True))
    assert escalated.state == "update"
    assert ledger["a"].overwhelming
    (later,) = ledger.put("a", suspicion(140.0))
    assert later.overwhelming


def test_news_does_not_wait_and_what_is_overwhelming_already_is_none():
    """What a stage calls news passes before its time; the same strength of evidence once more does not."""
    ledger = OpenSuspicions[str](30.0)
    ledger.put("a", suspicion(100.0, overwhelming=True))
    assert ledger.put("a", suspicion(101.0, overwhelming=True)) == []
    (update,) = ledger.put("a", suspicion(102.0), at_once=True)
    assert (update.state, update.ts) == ("update", 102.0)
    (clear,) = ledger.clear("a", 103.0)
    assert clear.score == 0.0


@given(
    st.lists(st.tuples(st.sampled_from(["put", "now", "clear"]), st.sampled_from("ab"), st.integers(0, 40)))
)
def test_a_story_has_one_beginning_one_onset_and_one_end(told):
    """Of each thing a raise comes first, then updates of the same onset in order of time, then its end."""
    ledger, ts = OpenSuspicions[str](30.0), 100.0
    last: dict[str, Suspicion | None] = {}
    for what, key, later in told:
        ts += later
        for s in (
            ledger.clear(key, ts)
            if what == "clear"
            else ledger.put(key, suspicion(ts), at_once=what == "now")
        ):
            before = last.get(key)
            assert (s.state == "raise") == (before is None)
            assert before is None or (s.onset == before.onset and s.ts >= before.ts)
            last[key] = None if s.state == "clear" else s
    assert sorted(ledger) == sorted(key for key, s in last.items() if s is not None)
