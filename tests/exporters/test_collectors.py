"""The contract every collector keeps, whatever its source looks like."""

import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exporters import registry
from exporters.dumps.collector import DumpsCollector
from exporters.exporter import Exporter, NodeIdentity
from exporters.host.boot import BootCollector
from exporters.host.chrony import ChronyClient
from exporters.host.clock import ClockCollector
from exporters.host.infiniband import InfinibandCollector
from exporters.host.kmsg import KmsgCollector
from exporters.host.nic import NetCollector
from exporters.host.proc import HostCollector
from exporters.host.tcp_delay import TcpDelayCollector
from exporters.nccl.collector import NcclCollector
from exporters.nvml.collector import NvmlCollector
from exporters.scrape.collector import ScrapeCollector
from exporters.spool import SpoolStats
from exporters.steps import StepsCollector
from slowrank.telemetry import NodeSample, decode_sample, encode
from slowrank.telemetry.schema import CURRENT_SAMPLE_SCHEMA, SAMPLE_SCHEMAS
from streams.node.batch import Batch, Devices
from tests.exporters.toy_collector import ToyCollector

GPU_CHILD = (sys.executable, str(Path(__file__).parent / "fixture_gpu_child.py"))
SCHEMA = SAMPLE_SCHEMAS[CURRENT_SAMPLE_SCHEMA]

# name -> the collector over a source below a root folder
COLLECTORS: dict[str, Callable[[Path], Any]] = {
    "steps": lambda root: StepsCollector([str(root / "steps.sock")]),
    # Nothing listens there; tests/exporters/scrape serves it odd pages.
    "scrape": lambda root: ScrapeCollector(["http://127.0.0.1:9/metrics"]),
    "nccl": lambda root: NcclCollector([str(root)]),
    "dumps": lambda root: DumpsCollector([str(root)]),
    "nvml": lambda root: NvmlCollector([*GPU_CHILD, "2", "1:hang"]),
    "host": lambda root: HostCollector(root),
    "tcp_delay": lambda root: TcpDelayCollector(),
    "clock": lambda root: ClockCollector(ChronyClient(("127.0.0.1", 9)), lambda: None),
    "boot": lambda root: BootCollector(root),
    "nic": lambda root: NetCollector(root),
    "infiniband": lambda root: InfinibandCollector(root),
    "kmsg": lambda root: KmsgCollector(dict, lambda: 0.0, root / "kmsg"),
}

ODD = [
    "",
    "N/A (no PMA)",
    "\0\0",
    "-",
    "9" * 400,
    "nan",
    "0x",
    "1e999",
    "18446744073709551615",
    b"\xff\xfe\xff",
]


@pytest.fixture(params=[*COLLECTORS, "toy"])
def make(request):
    return {**COLLECTORS, "toy": lambda root: ToyCollector({"gpu.power_watts": 321.0})}[request.param]


def odd_tree(root, text):
    """Every file any collector reads, all holding the same odd text."""
    data = text if isinstance(text, bytes) else text.encode()
    names = ["stat", "loadavg", "meminfo", "vmstat", "pressure/cpu", "pressure/memory", "pressure/io", "kmsg"]
    names += ["nccl-inspector-7/node-pid1.log", "7/nccl_trace_rank_3"]
    names += [
        f"eth0/{n}" for n in ("operstate", "carrier", "speed", "carrier_changes", "statistics/rx_bytes")
    ]
    port = "mlx5_0/ports/1"
    names += [
        f"{port}/{n}" for n in ("state", "rate", "counters/port_rcv_data", "hw_counters/out_of_sequence")
    ]
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def collected(collector, instants, ticks=3, close=True):
    readings = []
    try:
        for n in range(ticks):
            began = time.monotonic()
            readings.append(collector.collect(instants(n)))
            assert time.monotonic() - began < 0.75
        assert all(isinstance(value, (int, float)) for value in collector.metrics().values())
    finally:
        if close:
            collector.close()
    return readings


def test_every_registered_collector_is_under_contract():
    """Whoever adds a collector adds it here."""
    found = registry.collectors([])
    try:
        assert [c.name for c in found] == list(COLLECTORS)
    finally:
        for collector in found:
            collector.close()


def test_one_more_collector_is_one_file_and_one_line(monkeypatch, instants):
    """Beside the collectors of the registry a toy's values reach the record, and the node stage's batch."""
    found = [*registry.collectors([]), ToyCollector({"gpu.power_watts": 321.0})]
    exporter = Exporter(NodeIdentity("c", "n", "b"), found)
    try:
        record = exporter.tick(instants(0), SpoolStats(0, 0))[0]
        assert isinstance(record, NodeSample)
        assert exporter.metrics()["toy_ticks_total"] == 1.0
    finally:
        exporter.close()
    sample = decode_sample(encode(record))
    batch = Batch(
        slice(0, 1), np.zeros(1), [sample], [Devices(sample.schema, sample.gpu_ids, sample.nic_ids)]
    )
    assert batch.gpu["gpu.power_watts"][0, batch.gpu.ids[0].index("0")] == 321.0


def test_a_missing_source_gives_no_values(make, tmp_path, instants):
    """Without its files a collector reads nothing, raises nothing and makes no zeros."""
    for reading in collected(make(tmp_path), instants):
        for columns in (reading.host, *reading.nic.values()):
            assert all(value is None for value in columns.values())
        assert not reading.events
        assert not reading.steps


@pytest.mark.parametrize("text", ODD, ids=[ascii(t)[:16] for t in ODD])
def test_an_odd_source_gives_no_values(make, tmp_path, instants, text):
    """Files that hold anything but what they should never raise and never become a number."""
    odd_tree(tmp_path, text)

    for reading in collected(make(tmp_path), instants):
        for columns in (reading.host, *reading.nic.values()):
            wrong = {k: v for k, v in columns.items() if v is not None and not math.isfinite(v)}
            assert not wrong
            assert all(value is None for name, value in columns.items() if name.endswith("_total"))


def test_files_and_folders_in_each_others_place_read_as_nothing(make, tmp_path, instants):
    """A folder where a file should be, or a file where a folder should be, reads as nothing."""
    for name in ("stat", "eth0/statistics/rx_bytes", "mlx5_0/ports/1/state"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "mlx5_1").write_text("a file")

    collected(make(tmp_path), instants)


def test_only_columns_of_the_schema_are_read(make, tmp_path, instants):
    """What a collector names, it has declared, and the record can carry."""
    collector = make(tmp_path)
    for reading in collected(collector, instants):
        rows = (reading.host, *reading.nic.values(), *reading.gpu.values())
        assert {name for row in rows for name in row} <= set(collector.columns)
        assert set(reading.host) <= set(SCHEMA.host.names)
        assert {name for columns in reading.nic.values() for name in columns} <= set(SCHEMA.nic.names)
        assert {name for columns in reading.gpu.values() for name in columns} <= set(SCHEMA.gpu.names)


@pytest.mark.parametrize(
    ("name", "hanging", "well"),
    [
        ("infiniband", "mlx5_0/ports/1/counters/port_rcv_data", "mlx5_1/ports/1/counters/port_rcv_data"),
        ("nic", "eth0/statistics/rx_bytes", "eth1/statistics/rx_bytes"),
    ],
)
def test_a_device_whose_file_hangs_costs_only_its_own_values(tmp_path, instants, name, hanging, well):
    """A read that does not return, here of an empty pipe: the tick is short, the device behind it is read.

    The answer counts when it comes.
    """
    pipe, file = tmp_path / hanging, tmp_path / well
    pipe.parent.mkdir(parents=True)
    os.mkfifo(pipe)
    file.parent.mkdir(parents=True)
    file.write_text("5")
    collector = COLLECTORS[name](tmp_path)

    readings = collected(collector, instants, ticks=4, close=False)

    values = [[columns.get("nic.port.rx_bytes_total") for columns in r.nic.values()] for r in readings]
    assert [bool(late) for late, _ in values] == [False] * 4
    assert all(prompt for _, prompt in values)
    assert sum(v for k, v in collector.metrics().items() if k.endswith("_blocked")) == 1
    pipe.write_text("7")
    until(lambda: next(iter(collector.collect(instants(9)).nic.values())).get("nic.port.rx_bytes_total"))
    collector.close()


def until(condition):
    deadline = time.monotonic() + 5.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_closing_gives_everything_back(make, tmp_path, instants):
    """A collector leaves no open file behind, and may be closed twice."""
    before = open_files()
    collector = make(tmp_path)
    collector.collect(instants(0))
    collector.close()
    collector.close()

    assert open_files() == before
    assert not (tmp_path / "steps.sock").exists()


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))
