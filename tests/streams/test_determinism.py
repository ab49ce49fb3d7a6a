"""The same telemetry gives the same findings, byte for byte, however it travels."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import Cluster, ClusterSpec, Fault, JobSpec, Workload
from tests.streams.partitions import Workers, in_one, regrouped, shuffled

SECONDS = 180.0
HANG_NOTE = re.compile(rb'"note":"(no rank is behind the others|ranks behind: [0-9, -]+)"')


def telemetry(seed, faults):
    """Two jobs on seven nodes, one of them alone in its partition more often than not."""
    pauses = Workload(gc_share=0.02, checkpoint_every=30, checkpoint_seconds=5.0)
    jobs = (
        JobSpec(dp=4, tp=4, job_id="a", workload=pauses),
        JobSpec(dp=3, tp=4, job_id="b", first_node=4, step_seconds=0.9),
    )
    spec = ClusterSpec(nodes=7, gpus=4, nics=1, jobs=jobs)
    return list(Cluster(spec, seed=seed, faults=faults).run(SECONDS))


def fault(kind, node, gpu=None, *, onset, **changes):
    return replace(Fault(kind=kind, node=node, gpu=gpu, onset=onset), **changes)


def out_of_contact(nodes, *, onset, duration):
    """The exporters of several nodes that cannot deliver for a while."""
    return tuple(fault("exporter_gap", node, onset=onset, duration=duration) for node in nodes)


MIX = {
    "many nodes out of contact, one for good": (
        *out_of_contact((1, 4, 6), onset=80, duration=35),
        fault("node_silent", 2, onset=80),
        fault("thermal_throttle", 5, 3, onset=70, magnitude=1.3),
    ),
    "silent one after the other, then all at once": (
        fault("exporter_gap", 3, onset=70, duration=60),
        *out_of_contact((0, 1, 2, 4, 5, 6), onset=100, duration=40),
        fault("nic_flap", 5, 0, onset=75, duration=15),
    ),
    "slow, narrowed and flapping": (
        fault("thermal_throttle", 1, 3, onset=70, magnitude=1.3),
        fault("pcie_downgrade", 2, 2, onset=80),
        fault("nic_flap", 5, 0, onset=90, duration=30),
        fault("ecc_storm", 6, 1, onset=75, duration=60),
    ),
    "silent, stopped and lost": (
        fault("node_silent", 6, onset=110),
        fault("job_hang", 1, 0, onset=120),
        fault("exporter_gap", 2, onset=80, duration=25),
        fault("silent_slow", 5, 2, onset=70, magnitude=1.15),
    ),
}


@pytest.fixture(scope="module", params=MIX)
def recorded(request):
    """Telemetry, and what it leads to in one process."""
    records = telemetry(3, MIX[request.param])
    return records, in_one(records)


def test_there_is_something_to_find(recorded):
    """Each of the faults that matter leads to a finding, else the suite would prove nothing."""
    assert len(recorded[1].splitlines()) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("partitions", [1, 2, 4, 7])
def test_partitions_change_nothing(recorded, partitions):
    """The workers on any number of partitions find what one process finds."""
    records, found = recorded
    assert Workers(partitions).findings(records) == found


@pytest.mark.slow
def test_batches_of_a_fetch_change_nothing(recorded):
    """Workers that take what came in a quarter of a second, partition by partition, find the same."""
    records, found = recorded
    assert Workers(4).findings_in_batches(records, 0.25) == found


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [10_000, 400])
def test_nor_does_a_log_that_is_read_in_bulk(recorded, at_once):
    """Partitions read one after the other, each to its end or by turns: what was written long ago.

    Apart from a note: steps that come at a stretch have been read on when a stall is judged.
    """
    records, found = recorded
    again = Workers(4).findings_in_bulk(records, at_once)
    assert HANG_NOTE.sub(b"", again) == HANG_NOTE.sub(b"", found)


@pytest.mark.slow
@settings(max_examples=4)
@given(
    seconds=st.sampled_from([0.0, 0.5, 2.0]),
    lateness=st.floats(0.0, 1.0),
    seed=st.integers(0, 99),
    partitions=st.sampled_from([0, 3, 5]),
)
def test_neither_do_batches_nor_the_order_of_senders(recorded, seconds, lateness, seed, partitions):
    """Step rows cut into other records, senders that overtake each other, both, and over partitions."""
    records, found = recorded
    travelled = shuffled(regrouped(records, seconds), lateness, seed)
    again = Workers(partitions).findings(travelled) if partitions else in_one(travelled)
    assert again == found


def test_a_record_sent_again_changes_nothing(recorded):
    """At least once is what the log promises."""
    records, found = recorded
    assert in_one(r for record in records for r in (record, record)) == found
