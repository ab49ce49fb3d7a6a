import msgspec

from slowrank.telemetry import Subject, Suspicion
from streams.ledger import Ledger


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
    ledger = Ledger[str](30.0)
    assert [s.state for s in ledger.put("a", suspicion(100.0))] == ["raise"]
    assert ledger.put("a", suspicion(120.0)) == []
    (update,) = ledger.put("a", suspicion(130.0))
    assert (update.state, update.onset, update.ts) == ("update", 95.0, 130.0)
    (clear,) = ledger.clear("a", 140.0)
    assert (clear.state, clear.ts, clear.onset) == ("clear", 140.0, 95.0)
    assert ledger.clear("a", 141.0) == []


def test_nothing_ends_before_it_was_raised():
    """A stall is told at its deadline, and the step that ends it may have been made before."""
    ledger = Ledger[str](30.0)
    ledger.put("a", suspicion(100.0))
    (clear,) = ledger.clear("a", 95.0)
    assert (clear.state, clear.ts) == ("clear", 100.0)


def test_becoming_overwhelming_is_said_at_once_and_stays():
    """Escalation does not wait for the interval, and weaker evidence later does not take it back."""
    ledger = Ledger[str](30.0)
    ledger.put("a", suspicion(100.0))
    (escalated,) = ledger.put("a", suspicion(101.0, overwhelming=True))
    assert escalated.state == "update"
    assert ledger.is_believed("a")
    (later,) = ledger.put("a", suspicion(140.0))
    assert later.overwhelming
