"""Nodes of one cluster in several partitions are compared as if all were in one, also after a restart."""

import asyncio
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.files.replay import findings_of
from streams.pipeline import local_pipeline
from tests.streams.cluster.weak_signs import SICK, T0, TUNING, samples
from tests.streams.partitions import Workers, last_versions, minute_sent_at, sent_by_nodes, shuffled
from tests.streams.runtime.test_sinks import Database, Sinks, log_of, take


@cache
def records():
    """The records that every test here takes."""
    return samples(minutes=12)


@cache
def expected():
    """The findings of one process in which all nodes are one stage's."""
    return last_versions(findings_of(records(), local_pipeline(TUNING)))


def test_there_is_something_to_find():
    """Else the suite would prove nothing."""
    [line] = expected().splitlines()
    assert b'"kind":"gray.node"' in line
    assert SICK.encode() in line


@pytest.mark.parametrize("partitions", [1, 2, 5])
def test_partitions_change_nothing(partitions):
    """Each worker tells of the nodes it sees; what they show together is the same to the last byte."""
    workers = Workers(partitions, TUNING)
    workers.findings(records())
    assert last_versions(workers.versions) == expected()


@pytest.mark.slow
@settings(max_examples=5, deadline=None)
@given(partitions=st.sampled_from([1, 2, 5]), lateness=st.floats(0.0, 3.0), seed=st.integers(0, 99))
def test_neither_does_the_order_of_nodes(partitions, lateness, seed):
    """Nodes overtake each other, so that batches and ticks fall elsewhere."""
    workers = Workers(partitions, TUNING)
    workers.findings(shuffled(records(), lateness, seed))
    assert last_versions(workers.versions) == expected()


@pytest.fixture(scope="module")
def whole():
    """The log, and all versions that a sink which is never restarted stores."""
    log, database = log_of(sent_by_nodes(records(), TUNING, 2), "suspicions"), Database()
    asyncio.run(take(Sinks(log, database, tuning=TUNING), log.messages))
    assert {f.kind for f in database.findings} == {"gray.node"}
    return log, database.findings


@pytest.mark.parametrize("after", [70, 250, 310, 370, 490, 670])
@pytest.mark.parametrize("more", [0, 7])
def test_a_restarted_sink_goes_on_as_if_it_had_not_been(whole, after, more):
    """Stopped between two minutes or within the minutes of the nodes, it reads them again from the log."""
    log, versions = whole
    cut = more + next(n for n, m in enumerate(log.messages) if minute_sent_at(m) >= T0 + after)
    first, second = Database(), Database()
    asyncio.run(take(Sinks(log, first, tuning=TUNING), log.messages[:cut]))
    asyncio.run(take(Sinks(log, second, tuning=TUNING), log.messages[cut:]))
    assert first.findings + second.findings == versions
