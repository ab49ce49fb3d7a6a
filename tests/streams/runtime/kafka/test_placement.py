"""Where keys belong when a topic has grown."""

import pytest
from aiokafka.partitioner import DefaultPartitioner
from kafka.partitioner.default import murmur2 as exporters_hash

from streams.runtime.kafka.message import Message
from streams.runtime.kafka.partition_growth import continued
from streams.runtime.kafka.placement import Counts, Placement, home

KEYS = [f"node-{n}".encode() for n in range(200)]
GREW = 1_795_160_000.0


def message(key, partition, *, topic="node-samples", moved=""):
    return Message(topic, partition, 7, GREW, b"value", key, moved)


def placement(now, *former):
    made = Placement("detect")
    made.update({"node-samples": Counts(now, dict.fromkeys(former, GREW))})
    return made


@pytest.mark.parametrize("count", [1, 4, 8, 12])
def test_the_home_of_a_key_is_where_our_producers_put_it(count):
    """Those of the exporter, of the API and of the workers alike."""
    partitions = list(range(count))
    homes = [home(key, count) for key in KEYS]
    assert homes == [DefaultPartitioner()(key, partitions, partitions) for key in KEYS]
    assert homes == [(exporters_hash(key) & 0x7FFFFFFF) % count for key in KEYS]


def test_what_lies_in_a_former_partition_is_sent_on():
    """To where its key is today, with where it lay; what lies well, and what never moved, stays."""
    grown = placement(8, 4)
    for key in KEYS:
        old, new = home(key, 4), home(key, 8)
        assert grown.new_home(message(key, old)) == (new if new != old else None)
        assert grown.new_home(message(key, new)) is None
    moved = next(key for key in KEYS if home(key, 4) == 1 and home(key, 8) == 5)
    sent = grown.sent_on(message(moved, 1), 5)
    assert (sent.topic, sent.partition, sent.key, sent.value) == ("node-samples", 5, moved, b"value")
    header = sent.headers[0][1].decode()
    assert grown.moved_from(message(moved, 5, moved=header)) == (1, 7)
    assert Placement("sink").moved_from(message(moved, 5, moved=header)) is None


@pytest.mark.parametrize("key", [b"", b"node-0"])
def test_without_growth_and_without_a_key_all_stays(key):
    """Also what a sender has put where its own hash says."""
    for partition in range(4):
        assert placement(4).new_home(message(key, partition)) is None
        assert Placement("detect").new_home(message(key, partition)) is None
    assert placement(8, 4).new_home(message(b"", 1)) is None


@pytest.mark.parametrize(
    ("now", "former", "partition", "sources"),
    [(8, [4], 5, [1]), (8, [4], 1, []), (6, [4], 1, [0, 2, 3]), (16, [4, 8], 13, [1, 5]), (4, [], 1, [])],
)
def test_the_past_of_a_partition_lies_where_its_keys_were(now, former, partition, sources):
    found = placement(now, *former)
    assert found.sources(("node-samples", partition), GREW - 60) == sources
    for key in KEYS:
        if home(key, now) == partition:
            assert {home(key, n) for n in former} <= {*sources, partition}


def test_growth_of_long_ago_has_no_past_to_read():
    assert placement(8, 4).sources(("node-samples", 5), GREW + 601) == []


def test_only_a_topic_that_was_known_before_has_grown():
    """What a worker finds at its start is no growth while it runs."""
    known = Placement("detect")
    assert known.update({"a": Counts(4), "b": Counts(4)}) == set()
    assert known.update({"a": Counts(8, {4: GREW}), "b": Counts(4)}) == {"a"}
    assert known.update({"a": Counts(8, {4: GREW}), "b": Counts(4)}) == set()


def test_a_topic_that_is_not_listed_for_a_moment_is_seen_to_grow():
    """Between two answers of the brokers, one of which lacks it."""
    known = Placement("sink")
    assert known.update({"a": Counts(4)}) == set()
    assert known.update({}) == set()
    assert known.partitions("a") == 4
    assert known.update({"a": Counts(8, {4: GREW})}) == {"a"}


def test_the_history_of_a_topic():
    """Each count once; a topic that was made anew has no past."""
    history = continued([], 4, 1.0)
    assert continued(history, 4, 2.0) == [(4, 1.0)]
    history = continued(history, 8, 3.0)
    assert history == [(4, 1.0), (8, 3.0)]
    assert continued(history, 2, 4.0) == [(2, 4.0)]
