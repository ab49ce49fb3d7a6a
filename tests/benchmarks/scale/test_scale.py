import asyncio
from collections import defaultdict

import numpy as np
import pytest

from benchmarks.scale import fleet, huge_job, linger, storage
from benchmarks.scale.as_exported import sent
from benchmarks.scale.worker import LocalWorker
from simulator import Cluster, ClusterSpec
from slowrank.telemetry import NodeSample, decode_message, decode_sample, encode
from slowrank.telemetry.columns import unpack
from slowrank.telemetry.schema import CURRENT_SAMPLE_SCHEMA, SAMPLE_SCHEMAS
from slowrank.telemetry.topics import NODE_SAMPLES
from streams.runtime.kafka.record_producer import key_of

SCHEMA = SAMPLE_SCHEMAS[CURRENT_SAMPLE_SCHEMA]


def test_every_node_and_job_of_a_fleet_is_in_one_partition():
    """All partitions together have each node's samples and each job's steps once, with faults in some."""
    recorded = [fleet._recorded(8, faulty=faulty) for faulty in (False, True)]
    sent = [
        (partition, topic, value)
        for partition in range(3)
        for second in fleet._by_second(recorded, 150, partition, 3)
        for _, topic, value in second
    ]
    samples = [(p, decode_sample(v, now=None)) for p, topic, v in sent if topic == NODE_SAMPLES]
    assert len({s.node for _, s in samples}) == 150
    assert len({(s.node, s.seq) for _, s in samples}) == len(samples)
    assert len({(key_of(s), p) for p, s in samples}) == 150
    assert {p for p, _ in samples} == {0, 1, 2}


@pytest.mark.slow
def test_a_fleet_is_analysed_and_its_faults_are_found(capsys):
    """The faulty job is found, and the silent site in the end; the goals hold for a small fleet."""
    assert fleet.main(["--nodes", "128", "--partitions", "2", "--seconds", "80"]) == 0
    shown = capsys.readouterr().out
    assert "| analysis, all partitions |" in shown
    assert " 0 findings" not in shown


def test_a_worker_without_brokers_sends_what_a_silent_node_leads_to():
    """Its clock goes on without messages."""

    async def sent():
        worker = LocalWorker(fleet.START)
        spec = ClusterSpec(nodes=2, gpus=1, nics=1, start=fleet.START)
        for record in Cluster(spec, seed=1).run(20.0):
            if isinstance(record, NodeSample):
                await worker.take(record.ts, NODE_SAMPLES, encode(record))
                worker.look()
        for _ in range(40):
            worker.look(1.0)
        return {getattr(decode_message(value), "kind", "") for _, value in worker.sent}

    assert {"exporter.stale", "node.silent"} <= asyncio.run(sent())


@pytest.mark.slow
def test_a_slow_rank_of_a_large_job_is_named(capsys):
    """The table grows with the steps."""
    assert huge_job.main(["--ranks", "512", "--steps", "40"]) == 0
    assert "named 3 steps after" in capsys.readouterr().out


def test_more_ticks_in_a_batch_take_less():
    """The log of ten ticks in a batch is half of that of one in each."""
    records = [r for r in Cluster(ClusterSpec(nodes=2), seed=5).run(60.0) if isinstance(r, NodeSample)]

    def size(ticks):
        return sum(len(storage._packed(batch)) for _, batch in storage._batches(records, ticks))

    assert size(10) < 0.6 * size(1)


def test_a_batch_arrives_when_its_first_record_has_waited():
    """Two ticks arrive together where the linger is longer than a tick; nodes do not wait for each other."""
    records = [r for r in Cluster(ClusterSpec(nodes=2), seed=5).run(4.0) if isinstance(r, NodeSample)]
    records.sort(key=lambda record: record.ts)
    for seconds, ticks in ((0.2, 1), (1.1, 2)):
        times = defaultdict(list)
        for at, record in linger.arrivals(records, seconds):
            times[record.node, at].append(record)
        assert {len(batch) for batch in times.values()} == {ticks}
        assert all(at == batch[0].ts + seconds + linger.SENT_SECONDS for (_, at), batch in times.items())


def test_what_an_exporter_does_not_read_is_missing_and_the_rest_has_its_resolution():
    """GPUs take turns in the slow set, ports send packets in every fifth tick; power is in whole mW."""
    made = Cluster(ClusterSpec(nodes=1), seed=5).run(10.0)
    read = [sent(record) for record in made if isinstance(record, NodeSample)]
    rows = [list(unpack(SCHEMA.gpu, sample.gpu)) for sample in read]
    ports = [next(unpack(SCHEMA.nic, sample.nic)) for sample in read]
    for gpu in range(8):
        assert sum(row[gpu]["gpu.ecc.corrected_total"] is not None for row in rows) == 2
    assert [port["nic.port.rx_packets_total"] is None for port in ports] == ([False] + 4 * [True]) * 2
    watts = rows[0][0]["gpu.power_watts"]
    assert watts is not None
    assert watts == np.float32(round(watts * 1000) / 1000)


@pytest.mark.slow
def test_tables_are_measured_with_their_indexes(capsys):
    """Every table has rows, and the columns of samples are listed; the goals are missed."""
    assert storage.main(["--nodes", "2", "--seconds", "60"]) == 1
    shown = capsys.readouterr().out
    assert "| all but the columns |" in shown
    assert all(f"| `{table}` |" in shown for table in storage.TABLES)
