"""A node unlike the others of its job gives the same bytes over partitions, in other orders and restarts."""

import asyncio
from functools import cache

import msgspec
import numpy as np
import pytest

from slowrank.telemetry.columns import pack
from slowrank.telemetry.schema import GPU_V1
from streams.config.settings import Tuning
from streams.files.replay import findings_of
from streams.pipeline import local_pipeline
from tests.streams.cluster.weak_signs import T0, sample
from tests.streams.partitions import Workers, last_versions, minute_sent_at, sent_by_nodes, shuffled
from tests.streams.runtime.test_sinks import Database, Sinks, log_of, take

ODD, NODES, EVERY, SINCE, TILL, MINUTES = "node-3", 6, 10.0, 12, 22, 40


@cache
def records():
    """The host of one node is busy for ten minutes, in which all GPUs take less power; then all is well."""
    rng, found = np.random.default_rng(1), []
    for seq in range(int(MINUTES * 60 / EVERY)):
        slow = SINCE <= seq * EVERY / 60 < TILL
        for node in range(NODES):
            name = f"node-{node}"
            host = sample(
                name, T0 + seq * EVERY + 0.013 * node, 2.8 if slow and name == ODD else 1.0, seq=seq
            )
            power = [{"gpu.power_watts": (540.0 if slow else 600.0) * rng.normal(1.0, 0.005)} for _ in "ab"]
            found.append(msgspec.structs.replace(host, job_id="j", gpu=pack(GPU_V1, power)))
    return found


@cache
def expected():
    """The findings of one process in which all nodes are one stage's."""
    return last_versions(findings_of(records(), local_pipeline()))


def test_there_is_something_to_find():
    """Else the suite would prove nothing."""
    [line] = expected().splitlines()
    found = msgspec.json.decode(line)
    assert (found["kind"], found["subject"]["node"], found["status"]) == (
        "host.cpu_contention",
        ODD,
        "resolved",
    )


@pytest.mark.parametrize(("partitions", "lateness"), [(1, 0.0), (2, 0.0), (5, 2.5)])
def test_partitions_and_order_change_nothing(partitions, lateness):
    """Each worker sums the nodes that it sees, which overtake each other."""
    workers = Workers(partitions)
    workers.findings(shuffled(records(), lateness, 7))
    assert last_versions(workers.versions) == expected()


@pytest.fixture(scope="module")
def whole():
    """The log, and all versions that a sink which is never restarted stores."""
    log, database = log_of(sent_by_nodes(records(), Tuning(), 2), "suspicions"), Database()
    asyncio.run(take(Sinks(log, database), log.messages))
    assert {f.kind for f in database.findings} == {"host.cpu_contention"}
    return log, database.findings


@pytest.mark.parametrize("minute", [5, 14, 16, 17, 21, 26, 28])
@pytest.mark.parametrize("more", [0, 3])
def test_a_restarted_sink_goes_on_as_if_it_had_not_been(whole, minute, more):
    """Stopped between two minutes or within the minutes of the nodes, before, in and after the finding."""
    log, versions = whole
    cut = more + next(n for n, m in enumerate(log.messages) if minute_sent_at(m) >= T0 + 60 * minute)
    first, second = Database(), Database()
    asyncio.run(take(Sinks(log, first), log.messages[:cut]))
    asyncio.run(take(Sinks(log, second), log.messages[cut:]))
    assert first.findings + second.findings == versions
