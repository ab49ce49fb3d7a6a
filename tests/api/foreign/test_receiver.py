"""What waits in memory is bounded, and nothing that was accepted is dropped."""

import threading
from collections import Counter

import pytest

from api.foreign import receiver, ticks
from api.foreign.measurement import Decoded
from api.foreign.receiver import ForeignReceiver, Full
from api.ingest import SinkUnavailable
from tests.api.foreign.test_ticks import NOW, SENDER, power


class Sink:
    """Takes records, or nothing while it is away."""

    def __init__(self):
        self.records, self.away = [], False

    def accept(self, records):
        if self.away:
            raise SinkUnavailable("no broker")
        self.records += records
        return {}


def request(second, nodes, gpus=2):
    """A scrape of some nodes."""
    return Decoded(
        [power(NOW + second, gpu=str(n), hostname=f"n{node}") for node in range(nodes) for n in range(gpus)],
        Counter(),
    )


def test_requests_beyond_what_may_wait_are_to_be_sent_again(monkeypatch):
    """Nothing of them is taken; when rounds are complete they fit, and every round of the first arrives."""
    monkeypatch.setattr(ticks, "MAX_WAITING_IN_ALL", 10)
    made, sink = ForeignReceiver(), Sink()
    assert made.take(request(0, 4), SENDER, sink, NOW) == {}
    for late in (1, 2):
        with pytest.raises(Full, match="8 measurements wait for the rest of their rounds, at most 10 may"):
            made.take(request(15, 4), SENDER, sink, NOW + 15 + late)
    assert made.waiting() == 8
    # The first rounds wait a minute for second ones, which tell the interval.
    assert made.take(request(75, 4), SENDER, sink, NOW + 76) == {}
    assert sorted(record.node for record in sink.records) == ["n0", "n1", "n2", "n3"]
    assert made.waiting() == 8


def test_a_request_that_never_fits_is_taken_alone(monkeypatch):
    """Its sender could send it for ever."""
    monkeypatch.setattr(ticks, "MAX_WAITING_IN_ALL", 10)
    made = ForeignReceiver()
    assert made.take(request(0, 20), SENDER, Sink(), NOW) == {}
    assert made.waiting() == 40


def test_while_the_pipeline_is_away_no_more_is_taken_than_it_can_be_given(monkeypatch):
    """All that was accepted until then arrives when it is back."""
    monkeypatch.setattr(receiver, "MAX_UNSENT", 5)
    made, sink = ForeignReceiver(), Sink()
    sink.away, waiting = True, []
    for second in range(0, 600, 15):
        try:
            made.take(request(second, 2), SENDER, sink, NOW + second + 1)
        except SinkUnavailable:
            waiting.append(made.waiting())
    assert waiting[10:] == [0] * len(waiting[10:])
    assert len(made._unsent) == 8
    sink.away = False
    for later in range(700, 1000, 15):
        made.take(request(later, 2), SENDER, sink, NOW + later + 1)
    times = [record.ts - NOW for record in sink.records if record.node == "n0"]
    assert times[:5] == [0.0, 15.0, 30.0, 45.0, 700.0]


def test_what_waits_is_read_while_the_sink_takes_records():
    """A broker may need seconds: an answer to another request does not wait for them."""
    made, seen = ForeignReceiver(), []

    class Slow(Sink):
        def accept(self, records):
            asked = threading.Thread(target=lambda: seen.append(made.waiting()), daemon=True)
            asked.start()
            asked.join(2.0)
            return super().accept(records)

    for second in (0, 15, 30):
        made.take(request(second, 1), SENDER, Slow(), NOW + second + 10)
    assert seen


def test_refused_nodes_are_in_the_log_once_a_minute(monkeypatch, caplog):
    """With the limits, and where the names are listed."""
    monkeypatch.setattr(ticks, "MAX_NODES", 2)
    made = ForeignReceiver()
    for second in (0, 15, 30, 75):
        assert made.take(request(second, 3, gpus=1), SENDER, Sink(), NOW + second) == {"too_many_nodes": 1}
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert "at most 2 nodes may send to one process" in lines[0]
    assert "/api/v1/ingest/sources" in lines[0]


def test_rounds_of_a_sender_that_comes_no_more_arrive():
    """A collector that catches up sends a quarter of an hour in some seconds, and has nothing more to say."""
    made, sink = ForeignReceiver(), Sink()
    for number in range(60):
        assert made.take(request(15 * number - 900, 2), SENDER, sink, NOW + number / 20) == {}
    assert sink.records == []
    made.settle(sink, NOW + 10)
    told = [(record.ts - NOW, record.node) for record in sink.records]
    assert told == [(15 * number - 900, node) for number in range(59) for node in ("n0", "n1")]
    # The last round, once the next would have come by now.
    made.settle(sink, NOW + 19)
    assert len(sink.records) == 120
    assert made.waiting() == 0


def test_complete_rounds_are_kept_while_the_pipeline_is_away():
    """They arrive with the next attempt."""
    made, sink = ForeignReceiver(), Sink()
    made.take(request(0, 1), SENDER, sink, NOW)
    sink.away = True
    with pytest.raises(SinkUnavailable):
        made.settle(sink, NOW + 61)
    sink.away = False
    made.settle(sink, NOW + 63)
    assert len(sink.records) == 1
