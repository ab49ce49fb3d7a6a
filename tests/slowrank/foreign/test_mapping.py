"""Metric names of other systems: which column, in which unit, of which device of which node."""

import math

import pytest

from slowrank.foreign.node_values import NodeValues, Xid
from slowrank.foreign.rules import DCGM, NODE_EXPORTER, OTEL, RULES
from slowrank.foreign.series import node_of, plain, points
from slowrank.telemetry.schema import CURRENT_SAMPLE_SCHEMA, SAMPLE_SCHEMAS

SCHEMA = SAMPLE_SCHEMAS[CURRENT_SAMPLE_SCHEMA]


def mapped(*series, ts=1000.0, node=None):
    """The columns of some (name, labels, value) at one moment."""
    found = []
    for name, labels, value in series:
        used = points(name, plain(labels), value)
        assert isinstance(used, list), used
        found += used
    return (node or NodeValues()).at(ts, found)


def dcgm(name, value, **labels):
    return f"DCGM_FI_{name}", {"gpu": "5", "UUID": "GPU-3f1c", "Hostname": "n1", **labels}, value


@pytest.mark.parametrize("name", RULES)
def test_every_rule_fills_a_column_of_its_own_device(name):
    """A misspelt column would be left out of every record without an error."""
    for rule in RULES[name]:
        assert rule.how == "xid" or rule.column in SCHEMA.block(rule.owner).names
        assert all(label == label.lower() and "." not in label for label in rule.only)


def test_the_tables_share_no_name():
    """One table must not hide a row of another."""
    assert len(RULES) == len(DCGM) + len(NODE_EXPORTER) + len(OTEL)


def test_counters_fill_counters():
    """A metric whose name ends in ``_total`` fills a counter, or a rate made of one."""
    for name, rules in RULES.items():
        for rule in rules:
            counted = rule.column.endswith("_total") or rule.how in ("rate", "share", "busy", "count")
            assert counted or not name.endswith("_total"), name


@pytest.mark.parametrize(
    ("series", "column", "value"),
    [
        (dcgm("DEV_SM_CLOCK", 1755.0), "gpu.clock.sm_hz", 1.755e9),
        (dcgm("DEV_GPU_UTIL", 98.0), "gpu.utilization_ratio", 0.98),
        (dcgm("DEV_FB_USED", 1024.0), "gpu.memory.used_bytes", 2**30),
        (dcgm("DEV_TOTAL_ENERGY_CONSUMPTION", 1.5e12), "gpu.energy_millijoules_total", 1_500_000_000_000),
        (dcgm("DEV_THERMAL_VIOLATION", 7e9), "gpu.throttle.thermal_nanoseconds_total", 7_000_000_000),
        (dcgm("DEV_CLOCKS_EVENT_REASONS", 64.0), "gpu.throttle_reasons", 64),
        (("hw.power", {"hw.type": "gpu", "hw.name": "GPU 5", "hw.id": "GPU-3f1c"}, 412.0),
         "gpu.power_watts", 412.0),
        (("hw.energy", {"hw.type": "gpu", "hw.id": "5"}, 2.5), "gpu.energy_millijoules_total", 2500),
    ],
)  # fmt: skip
def test_a_value_in_its_unit_at_its_gpu(series, column, value):
    """Megahertz, percent, mebibytes and joules become the column's unit; counters are whole numbers."""
    found = mapped(series).gpu

    assert found == {"5": {column: pytest.approx(value)}}
    assert isinstance(found["5"][column], int) == (column in ("gpu.throttle_reasons",) or "_total" in column)


@pytest.mark.parametrize(
    "value", [9223372036854775794, 9.223372036854775794e18, 2147483634.0, 2.0**47 + 2, math.nan, math.inf]
)
def test_a_sentinel_is_no_value(value):
    """DCGM's blanks mean "not supported", which is missing and neither a number nor 0."""
    assert points("DCGM_FI_DEV_MEMORY_TEMP", {"gpu": "0"}, value) == "blank"


@pytest.mark.parametrize(
    ("name", "labels", "reason"),
    [
        ("go_goroutines", {}, "unknown_metric"),
        ("DCGM_FI_DEV_ENC_UTIL", {"gpu": "0"}, "unknown_metric"),
        ("node_cpu_seconds_total", {"cpu": "0", "mode": "user"}, "other_labels"),
        ("hw.power", {"hw_type": "fan", "hw_id": "1"}, "other_labels"),
        ("DCGM_FI_DEV_GPU_TEMP", {}, "no_device"),
        ("DCGM_FI_DEV_GPU_TEMP", {"gpu": "0", "gpu_i_id": "3"}, "mig_instance"),
        ("node_network_up", {"device": "veth1a2b"}, "virtual_interface"),
    ],
)
def test_what_fills_no_column_says_why(name, labels, reason):
    """Readers count these by reason; nothing is dropped silently."""
    assert points(name, labels, 1.0) == reason


@pytest.mark.parametrize(
    ("labels", "node"),
    [
        ({"Hostname": "gpu-1", "instance": "10.0.0.1:9400"}, "gpu-1"),
        ({"node": "gpu-1", "hostname": "exporter-x7f"}, "gpu-1"),
        ({"host.name": "gpu-1"}, "gpu-1"),
        ({"instance": "gpu-1:9100"}, "gpu-1"),
        ({"instance": "rack 1/gpu-1"}, "rack-1/gpu-1"),
        ({"job": "dcgm"}, None),
    ],
)
def test_the_node_of_a_series(labels, node):
    """Whatever the label is called and however it is spelt."""
    assert node_of(plain(labels)) == node


def test_links_of_one_gpu_are_added_up():
    """Flit and data errors of all links are one column."""
    found = mapped(
        *(dcgm("DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", 2.0, nvlink=str(n)) for n in range(3)),
        dcgm("DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", 5.0),
    )

    assert found.gpu["5"] == {"gpu.nvlink.crc_errors_total": 11}


def test_clock_events_are_bits():
    """Each kind with a count above 0 sets its bit of NVML's mask, and only once."""
    name = "DCGM_EXP_CLOCK_EVENTS_COUNT"
    found = mapped(
        (name, {"gpu": "5", "clock_event": "hw_thermal"}, 3.0),
        (name, {"gpu": "5", "clock_event": "power_cap"}, 1.0),
        (name, {"gpu": "5", "clock_event": "sync_boost"}, 0.0),
    )

    assert found.gpu["5"] == {"gpu.throttle_reasons": 64 + 4}


def test_an_infiniband_port_has_the_name_of_our_own_collector():
    """So that both name one port; its state is whether it is active."""
    labels = {"device": "mlx5_0", "port": "1"}
    found = mapped(
        ("node_infiniband_state_id", labels, 4.0),
        ("node_infiniband_rate_bytes_per_second", labels, 5e10),
        ("node_infiniband_link_downed_total", labels, 2.0),
    )

    assert found.nic == {
        "mlx5_0/1": {
            "nic.port.up": 1.0,
            "nic.port.speed_bits_per_second": 4e11,
            "nic.port.link_downed_total": 2,
        }
    }


def test_shares_of_the_cpus_are_made_of_two_moments():
    """The first has none; a counter that goes back, after a reboot, has none either."""
    node = NodeValues()

    def at(ts, idle, iowait):
        return mapped(
            *(("node_cpu_seconds_total", {"cpu": str(c), "mode": "idle"}, idle) for c in range(4)),
            *(("node_cpu_seconds_total", {"cpu": str(c), "mode": "iowait"}, iowait) for c in range(4)),
            ts=ts,
            node=node,
        ).host

    first, second, rebooted = at(0.0, 100.0, 10.0), at(15.0, 103.0, 11.5), at(30.0, 1.0, 0.0)

    assert first == rebooted == {"host.cpu_count": 4.0}
    assert second == {
        "host.cpu_count": 4.0,
        "host.cpu.utilization_ratio": pytest.approx(1 - 4.5 / 15),
        "host.cpu.iowait_ratio": pytest.approx(0.1),
    }


def test_an_xid_is_an_event_when_it_changes():
    """The gauge holds the last XID for ever: at the first moment it may be of last week."""
    node = NodeValues()
    found = [
        mapped(dcgm("DEV_XID_ERRORS", float(code)), ts=float(n), node=node).xids
        for n, code in enumerate((31, 31, 79, 79, 0))
    ]

    assert found == [[], [], [Xid("5", 79)], [], []]
    assert found[2][0].code == "xid.79"
    assert found[2][0].severity == "critical"
    assert found[2][0].subject == {"gpu_index": 5, "xid": 79}
