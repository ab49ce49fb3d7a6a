from benchmarks.rig.gpu.telemetry import Read, activity, summary
from exporters.nvml.calls import CALL_SECONDS, COLUMNS

POWER, LIMIT = "gpu.power_watts", "gpu.power_limit_watts"

READS = [
    Read("idle", {"0": {}}, {}),
    Read("idle", {"0": {POWER: 100.0, LIMIT: 700.0, CALL_SECONDS: 0.01}}, {"0": "GPU-3f1c"}),
    Read("healthy", {"0": {POWER: 600.0, CALL_SECONDS: 0.02}}, {}),
    Read("healthy", {"0": {POWER: 700.0, "gpu.temp.mem_celsius": None, CALL_SECONDS: 0.06}}, {}),
]


def test_a_column_has_the_last_value_of_each_part():
    """Also one that is read once in some ticks only."""
    present = summary(READS)["0"]["present"]
    assert present[POWER] == {"idle": 100.0, "healthy": 700.0}
    assert present[LIMIT] == {"idle": 700.0}


def test_columns_without_any_value_are_missing():
    """Every column of the exporter's table is in one of both lists."""
    gpu = summary(READS)["0"]
    assert "gpu.temp.mem_celsius" in gpu["missing"]
    assert sorted([*gpu["present"], *gpu["missing"]]) == sorted(COLUMNS)


def test_reads_are_timed_by_part():
    """A tick without an answer is no read."""
    took = summary(READS)["0"]["read_seconds"]
    assert took == {
        "idle": {"reads": 1, "median": 0.01, "most": 0.01},
        "healthy": {"reads": 2, "median": 0.04, "most": 0.06},
    }


def test_identities_are_said_to_be_there_and_not_shown():
    """Figures are published; this board has a UUID and no serial number."""
    gpu = summary(READS)["0"]
    assert (gpu["uuid"], gpu["serial"]) == (True, False)
    assert "3f1c" not in str(gpu)


def test_activity_is_the_mean_of_a_part():
    """Of the columns that have values in it."""
    assert activity(READS, "healthy") == {"0": {POWER: 650.0}}
