import dataclasses

import pytest

from exporters.collector import Event, Reading, StepRows
from exporters.exporter import Exporter, NodeIdentity
from exporters.spool import Dropped, SpoolStats
from slowrank.telemetry import (
    JobSteps,
    NodeEvent,
    NodeSample,
    decode_event,
    decode_sample,
    decode_steps,
    encode,
)
from slowrank.telemetry.rows import json_rows

IDENTITY = NodeIdentity(cluster="c", node="n1", boot_id="boot-1")


class Fixed:
    """A collector that gives one reading, or fails."""

    def __init__(self, name, reading=None):
        self.name = name
        self.columns = {}
        self.reading = reading
        self.closed = False

    def collect(self, now):
        if self.reading is None:
            raise RuntimeError("sensor on fire")
        return self.reading

    def metrics(self):
        return {"step_rows_dropped_total": 5} if self.name == "steps" else {}

    def close(self):
        self.closed = True


def rows(job_id="job", count=1):
    return StepRows(
        job_id=job_id,
        attempt=1,
        world_size=4,
        labels={"phase": "train"},
        rows=tuple({"step": n, "rank": 0, "ts": 1_795_160_000.0, "step_seconds": 0.5} for n in range(count)),
    )


def values(record):
    return {(row["metric"], row["instance"]): row["value"] for row in json_rows.rows(record)}


def test_one_sample_a_tick_with_what_every_collector_read(instants):
    """Readings of several collectors meet in one record, which the codec reads back."""
    exporter = Exporter(
        IDENTITY,
        [
            Fixed("a", Reading(gpu={"0": {"gpu.power_watts": 400.0, "gpu.energy_millijoules_total": 2**60}})),
            Fixed("b", Reading(gpu={"0": {"gpu.xid_events_total": 0}}, nic={"mlx5_0/1": {"nic.port.up": 1}})),
            Fixed("steps", Reading(host={"host.load1": 1.5})),
        ],
    )

    [record] = exporter.tick(instants(0), SpoolStats(bytes=4096, dropped_total=3))

    assert isinstance(record, NodeSample)
    assert decode_sample(encode(record), now=record.ts) == record
    found = values(record)
    assert found["gpu.power_watts", "0"] == 400.0
    assert found["gpu.energy_millijoules_total", "0"] == 2**60
    assert found["gpu.xid_events_total", "0"] == 0
    assert found["nic.port.up", "mlx5_0/1"] == 1
    assert found["exporter.spool_bytes", ""] == 4096
    assert found["exporter.spool_dropped_total", ""] == 3
    assert found["exporter.step_rows_dropped_total", ""] == 5
    assert ("gpu.temp_celsius", "0") not in found


def test_what_does_not_fit_its_column_is_not_read(instants):
    """Drivers' sentinels beyond int64 or float32 and names the wire refuses do not stop the record."""
    reading = Reading(
        gpu={"0": {"gpu.energy_millijoules_total": 2**64 - 1, "gpu.power_watts": 1e300}},
        nic={"mlx5 0/{1}": {"nic.port.up": 1}, "x" * 500: {"nic.port.up": 0}},
        host={"host.load1": float("inf"), "host.unheard_of": 3.0},
    )

    [record] = Exporter(IDENTITY, [Fixed("a", reading)]).tick(instants(0), SpoolStats())

    assert isinstance(record, NodeSample)
    decode_sample(encode(record), now=record.ts)
    assert record.nic_ids == ("mlx5-0/-1-", "x" * 128)
    assert not [metric for metric, _ in values(record) if metric.startswith("gpu.") or metric == "host.load1"]


def test_a_broken_collector_silences_only_itself(instants):
    """A collector that raises is counted under its name; the others' values are sent."""
    exporter = Exporter(IDENTITY, [Fixed("broken"), Fixed("host", Reading(host={"host.load1": 2.0}))])

    for n in range(3):
        [record] = exporter.tick(instants(n), SpoolStats())

    assert values(record)["host.load1", ""] == 2.0
    assert exporter.metrics()['collector_failures_total{collector="broken"}'] == 3
    assert exporter.metrics()['collector_failures_total{collector="host"}'] == 0


def test_every_kind_of_record_counts_its_own_seq(instants):
    """(node, boot_id, seq) is unique within a topic and without gaps, so that gaps show what was dropped."""
    exporter = Exporter(IDENTITY, [Fixed("steps", Reading(steps=(rows(), rows("other"))))])

    records = [record for n in range(3) for record in exporter.tick(instants(n), SpoolStats())]

    assert [r.seq for r in records if isinstance(r, NodeSample)] == [0, 1, 2]
    assert [r.seq for r in records if isinstance(r, JobSteps)] == [0, 1, 2, 3, 4, 5]


def test_squared_lengths_are_sent_where_a_rank_reports_them(instants):
    """The records of other attempts are as large as ever."""
    (row, *_) = rows().rows
    squared = dataclasses.replace(rows("packed"), rows=({**row, "seq_len_sq_sum": 2**44}, row))
    exporter = Exporter(IDENTITY, [Fixed("steps", Reading(steps=(rows(), squared)))])

    records = [r for r in exporter.tick(instants(0), SpoolStats()) if isinstance(r, JobSteps)]

    plain, told = (decode_steps(encode(r), now=r.ts) for r in records)
    assert (plain.schema, told.schema) == (1, 2)
    assert [row.get("seq_len_sq_sum") for row in json_rows.rows(told)] == [2.0**44, None]


def test_steps_are_split_to_what_a_message_holds(instants):
    """A batch beyond the codec's limit travels in several records, none of them refused."""
    exporter = Exporter(IDENTITY, [Fixed("steps", Reading(steps=(rows(count=2500),)))])

    records = [r for r in exporter.tick(instants(0), SpoolStats()) if isinstance(r, JobSteps)]

    assert len(records) == 3
    steps = [row["step"] for r in records for row in json_rows.rows(decode_steps(encode(r), now=r.ts))]
    assert steps == list(range(2500))
    assert records[0].labels == {"phase": "train"}
    assert (records[0].job_id, records[0].attempt, records[0].world_size) == ("job", 1, 4)


@pytest.mark.parametrize(("jobs", "expected"), [([], None), (["job"], "job"), (["job", "other"], None)])
def test_a_sample_names_the_job_of_its_node(instants, jobs, expected):
    """A node that one job trains on belongs to it; an idle or a shared node belongs to none."""
    exporter = Exporter(IDENTITY, [Fixed("steps", Reading(steps=tuple(rows(job) for job in jobs)))])
    exporter.tick(instants(0), SpoolStats())

    sample = exporter.tick(instants(1), SpoolStats())[0]

    assert isinstance(sample, NodeSample)
    assert sample.job_id == expected


def test_a_job_that_ended_is_forgotten(instants):
    """A minute after the last step of a job the node is idle again."""
    collector = Fixed("steps", Reading(steps=(rows(),)))
    exporter = Exporter(IDENTITY, [collector])
    exporter.tick(instants(0), SpoolStats())
    collector.reading = Reading()

    [during, after] = [exporter.tick(instants(n), SpoolStats())[0] for n in (30, 90)]

    assert isinstance(during, NodeSample)
    assert isinstance(after, NodeSample)
    assert (during.job_id, after.job_id) == ("job", None)


def test_events_are_stamped_and_fit_the_wire(instants):
    """What a collector saw becomes a record of this node, whatever text was in it."""
    event = Event(
        ts=1_795_160_000.0,
        source="kmsg",
        code="xid.79",
        severity="critical",
        subject={"pci_bus_id": "0000:3b:00", "process": "a b;c", "gpu_index": 2},
        message="m" * 10_000,
    )
    exporter = Exporter(IDENTITY, [Fixed("kmsg", Reading(events=(event,)))])

    record = exporter.tick(instants(0), SpoolStats())[1]

    assert isinstance(record, NodeEvent)
    assert decode_event(encode(record), now=record.ts) == record
    assert record.subject == {"pci_bus_id": "0000:3b:00", "process": "a-b-c", "gpu_index": 2}
    assert record.node == "n1"


def test_a_loss_is_reported_to_the_consumers(instants):
    """Records that were dropped become an event which names them."""
    drop = Dropped(
        boot_id="boot-0", first_seq=10, last_seq=29, records=20, reason="the spool on disk was full"
    )

    event = Exporter(IDENTITY, []).tick(instants(0), SpoolStats(), [drop])[1]

    assert isinstance(event, NodeEvent)
    assert decode_event(encode(event), now=event.ts).code == "exporter.records_lost"
    assert "seq 10 to 29" in event.message
    assert event.subject == {"records": 20}


def test_closing_closes_every_collector():
    """Nothing stays open behind the exporter."""
    collectors = [Fixed("a"), Fixed("b")]

    Exporter(IDENTITY, collectors).close()

    assert all(collector.closed for collector in collectors)
