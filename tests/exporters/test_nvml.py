import sys
import time
from pathlib import Path

import pytest

from exporters.collector import Instant
from exporters.nvml import EXCLUDE_SECONDS, RETRY_WITHOUT_DRIVER_SECONDS, NvmlCollector

CHILD = (sys.executable, str(Path(__file__).parent / "fixture_gpu_child.py"))


class Ticks:
    """Ticks of real seconds, which may also jump ahead."""

    def __init__(self, collector):
        self.collector = collector
        self.ahead = 0.0

    def __call__(self):
        return self.collector.collect(Instant(wall=time.time(), monotonic=time.monotonic() + self.ahead))

    def until(self, condition, seconds=10.0):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            reading = self()
            if condition(reading.gpu):
                return reading.gpu
            time.sleep(0.1)
        pytest.fail("the GPUs never came to that state")


@pytest.fixture
def ticks_of():
    opened = []

    def start(*arguments):
        collector = NvmlCollector([*CHILD, *arguments])
        opened.append(collector)
        return Ticks(collector)

    yield start
    for collector in opened:
        collector.close()


def has_power(gpus, *indices):
    return all("gpu.power_watts" in gpus.get(str(i), {}) for i in indices)


def test_every_gpu_is_read(ticks_of):
    """Each GPU has its values, the time its calls took, and what other readers know it by."""
    ticks = ticks_of("4")

    gpus = ticks.until(lambda gpus: has_power(gpus, 0, 1, 2, 3))

    assert gpus["2"]["gpu.power_watts"] == 402.0
    assert gpus["2"]["gpu.throttle_reasons"] == 0
    assert gpus["2"]["gpu.nvml_call_seconds"] >= 0
    assert ticks.collector.gpu_indices() == {f"0000:{0x3B + i:02x}:00": i for i in range(4)}
    assert ticks.collector.gpu_uuids() == {f"GPU-{i}": i for i in range(4)}


def test_the_slow_set_is_read_now_and_then(ticks_of):
    """ECC counters come once in five ticks for each GPU, and are absent, not zero, in between."""
    ticks = ticks_of("1")
    ticks.until(lambda gpus: has_power(gpus, 0))

    seen = ["gpu.ecc.corrected_total" in ticks().gpu["0"] for _ in range(10)]

    assert sum(seen) == 2


def test_a_hung_gpu_costs_only_itself(ticks_of, tmp_path):
    """The other GPUs keep being read in every tick after the child was replaced; the hung one is silent."""
    ticks = ticks_of("3", "1:hang")

    gpus = ticks.until(lambda gpus: has_power(gpus, 0, 2))

    assert "gpu.power_watts" not in gpus["1"]
    metrics = ticks.collector.metrics()
    assert metrics["gpus_excluded"] == 1
    assert metrics["nvml_child_restarts_total"] == 1
    assert has_power(ticks().gpu, 0, 2)


def test_no_tick_waits_for_a_hung_gpu(ticks_of):
    """Ticks stay short while a GPU hangs, and name how long it has not answered."""
    ticks = ticks_of("2", "0:hang")
    ticks.until(lambda gpus: len(gpus) == 2)
    began = time.monotonic()

    reading = ticks()

    assert time.monotonic() - began < 0.6
    waited = reading.gpu["0"].get("gpu.nvml_call_seconds")
    assert waited is None or waited >= 0.3


def test_a_gpu_that_recovers_is_read_again(ticks_of, tmp_path):
    """After its time out a GPU is tried again, after the others; when it answers it is back."""
    ticks = ticks_of("2", f"1:once:{tmp_path / 'hung-once'}")
    ticks.until(lambda gpus: ticks.collector.metrics()["gpus_excluded"] == 1 and has_power(gpus, 0))

    ticks.ahead += EXCLUDE_SECONDS[0] + 1

    ticks.until(lambda gpus: has_power(gpus, 0, 1))
    assert ticks.collector.metrics()["gpus_excluded"] == 0


def test_a_late_answer_is_not_this_ticks_value(ticks_of):
    """A GPU slower than the tick allows has no values; the one read before it has."""
    ticks = ticks_of("2", "1:late")

    gpus = ticks.until(lambda gpus: has_power(gpus, 0))

    assert "gpu.power_watts" not in gpus["1"]
    assert ticks.collector.metrics()["nvml_child_restarts_total"] == 0


def test_a_child_that_dies_is_replaced(ticks_of):
    """When the child ends by itself nothing raises, and another is started later."""
    ticks = ticks_of("2", "1:die")
    ticks.until(lambda _: ticks.collector.metrics()["nvml_child_restarts_total"] == 1)

    ticks.ahead += 6.0

    ticks.until(lambda _: ticks.collector.metrics()["nvml_child_restarts_total"] == 2)


def test_a_machine_without_a_driver_has_no_gpus(ticks_of, caplog):
    """Without NVML there are no instances, which is said; the driver is looked for again after a while."""
    caplog.set_level("INFO", "exporters")
    ticks = ticks_of("none")

    for _ in range(20):
        assert ticks().gpu == {}
        time.sleep(0.05)

    assert ticks.collector.metrics()["nvml_child_restarts_total"] == 0
    assert caplog.text.count("no GPU is read") == 1
    assert RETRY_WITHOUT_DRIVER_SECONDS > 60


def test_a_child_that_cannot_be_started_is_no_error():
    """A missing interpreter leaves the collector empty."""
    collector = NvmlCollector(["/nonexistent/python"])

    assert collector.collect(Instant(wall=1.0, monotonic=1.0)).gpu == {}
    collector.close()
