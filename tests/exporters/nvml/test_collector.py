import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from exporters.collector import Instant
from exporters.nvml.collector import CALL_STEP, NvmlCollector
from exporters.nvml.deadlines import (
    HARD_SECONDS,
    PAUSE_SECONDS,
    PROMPT_SECONDS,
    RETRY_WITHOUT_DRIVER_SECONDS,
    SOFT_SECONDS,
)

# Ticks and reads of tenths of a second: a processor that is busy with other tests would be measured, too.
pytestmark = pytest.mark.alone

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

    def during(self, seconds, every=0.25):
        """Return what each tick of the next ``seconds`` reads."""
        read, first = [], time.monotonic()
        while time.monotonic() < first + seconds:
            began = time.monotonic()
            read.append(self().gpu)
            assert time.monotonic() - began < 2 * SOFT_SECONDS
            time.sleep(max(0.0, every - (time.monotonic() - began)))
        return read


@pytest.fixture
def ticks_of():
    opened = []

    def start(*arguments, **options):
        collector = NvmlCollector([*CHILD, *arguments], **options)
        opened.append(collector)
        return Ticks(collector)

    yield start
    for collector in opened:
        collector.close()


def has_power(gpus, *indices):
    return all("gpu.power_watts" in gpus.get(str(i), {}) for i in indices)


def seconds_of(gpus, index):
    return gpus[str(index)].get("gpu.nvml_call_seconds", 0.0)


def test_every_gpu_is_read(ticks_of):
    """Each GPU has its values, the time its calls took, and what other readers know it by."""
    ticks = ticks_of("4")

    gpus = ticks.until(lambda gpus: has_power(gpus, 0, 1, 2, 3))

    assert gpus["2"]["gpu.power_watts"] == 402.0
    assert gpus["2"]["gpu.throttle_reasons"] == 0
    assert gpus["2"]["gpu.nvml_call_seconds"] >= 0
    assert (gpus["2"]["gpu.nvml_call_seconds"] / CALL_STEP).is_integer()
    assert ticks.collector.gpu_indices() == {f"0000:{0x3B + i:02x}:00": i for i in range(4)}
    assert ticks.collector.gpu_uuids() == {f"GPU-{i}": i for i in range(4)}
    assert ticks.collector.metrics()["nvml_children"] == 1


def test_the_slow_set_is_read_now_and_then(ticks_of):
    """ECC counters come once in five ticks for each GPU, and are absent, not zero, in between."""
    ticks = ticks_of("1")
    ticks.until(lambda gpus: has_power(gpus, 0))

    seen = ["gpu.ecc.corrected_total" in ticks().gpu["0"] for _ in range(10)]

    assert sum(seen) == 2


@pytest.mark.slow
def test_a_hung_and_a_slow_gpu_cost_the_others_nothing(ticks_of):
    """Every tick has the values of the other six; the slow one's come too, and how long the other hangs."""
    ticks = ticks_of("8", "2:hang", "5:slow:1.0")
    ticks.until(lambda gpus: has_power(gpus, 0, 1, 3, 4, 6, 7))

    read = ticks.during(4.0)

    assert all(has_power(gpus, 0, 1, 3, 4, 6, 7) for gpus in read)
    assert sum(has_power(gpus, 5) for gpus in read) >= 2
    assert not any(has_power(gpus, 2) for gpus in read)
    assert seconds_of(read[-1], 2) > 3.5
    assert 1.0 <= seconds_of(read[-1], 5) < 2.0


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.4, 2.0])
def test_a_slow_gpu_keeps_its_values_and_reports_how_slow_it_is(ticks_of, seconds):
    """Answers that miss their tick are the next one's, again and again, and nothing is killed for them."""
    ticks = ticks_of("2", f"0:slow:{seconds}")
    ticks.until(lambda gpus: has_power(gpus, 1))

    read = ticks.during(2 * seconds + 1.5)

    assert sum(has_power(gpus, 0) for gpus in read) >= 2
    assert seconds_of(read[-1], 0) >= seconds
    assert ticks.collector.metrics()['gpu_read_seconds{gpu="0"}'] >= seconds
    assert ticks.collector.metrics()["nvml_child_restarts_total"] == 0


@pytest.mark.slow
def test_gpus_that_are_slow_together_are_all_read(ticks_of):
    """Eight reads that wait for each other and take 1.6 s in all: none of the last is lost."""
    ticks = ticks_of("8", *(f"{gpu}:serial:0.2" for gpu in range(8)))
    ticks.until(lambda gpus: len(gpus) == 8)

    read = ticks.during(5.0)

    for gpu in range(8):
        assert sum(has_power(gpus, gpu) for gpus in read) >= 2, gpu


@pytest.mark.slow
def test_a_gpu_that_blocks_its_process_is_read_apart(ticks_of):
    """Where the driver lets all calls of a process wait for one, the others are read again within seconds."""
    ticks = ticks_of("3", "1:lock")
    ticks.until(lambda gpus: len(gpus) == 3)

    ticks.until(lambda gpus: has_power(gpus, 0, 2), seconds=8.0)

    assert all(has_power(gpus, 0, 2) for gpus in ticks.during(2.0))
    assert ticks.collector.metrics()["gpus_apart"] == 3


def test_samples_name_the_boards_once_a_minute(ticks_of):
    """UUID and serial number of each GPU, where it has one, when they are first read and seldom after."""
    ticks = ticks_of("2")
    named: list[Mapping[str, str]] = []
    while not named or len(named[-1]) < 2:
        named += [labels] if (labels := ticks().labels) else []

    assert named[-1] == {"gpu.0": "GPU-0/165400", "gpu.1": "GPU-1"}
    assert ticks().labels == {}


def test_no_tick_waits_for_a_hung_gpu(ticks_of):
    """Ticks stay short while a GPU hangs, and name how long it has not answered."""
    ticks = ticks_of("2", "0:hang")
    ticks.until(lambda gpus: has_power(gpus, 1))
    began = time.monotonic()

    reading = ticks()

    assert time.monotonic() - began < SOFT_SECONDS
    assert seconds_of(reading.gpu, 0) >= 0.3


def test_a_gpu_that_recovers_is_read_again(ticks_of, tmp_path):
    """What hangs for long is ended and tried again after a pause, when the others go on; then it is back."""
    ticks = ticks_of("2", f"1:once:{tmp_path / 'hung-once'}")
    ticks.until(lambda gpus: has_power(gpus, 0))
    ticks.ahead += HARD_SECONDS + 1
    ticks.until(lambda gpus: ticks.collector.metrics()["nvml_child_restarts_total"] == 1)
    assert has_power(ticks().gpu, 0)
    assert not has_power(ticks().gpu, 1)

    ticks.ahead += PAUSE_SECONDS[0] + 1

    ticks.until(lambda gpus: has_power(gpus, 0, 1))


@pytest.mark.slow
def test_gpus_that_are_prompt_again_share_a_child(ticks_of, tmp_path):
    """After a minute without a slow read one child reads them all again, and no tick is lost."""
    ticks = ticks_of("3", f"1:once:{tmp_path / 'hung-once'}")
    ticks.until(lambda gpus: has_power(gpus, 0))
    ticks.ahead += HARD_SECONDS + 1
    ticks.until(lambda gpus: ticks.collector.metrics()["nvml_child_restarts_total"] == 1)
    ticks.ahead += PAUSE_SECONDS[0] + 1
    ticks.until(lambda gpus: has_power(gpus, 0, 1, 2))
    assert ticks.collector.metrics()["nvml_children"] == 2

    ticks.ahead += PROMPT_SECONDS + 1

    assert all(has_power(gpus, 0, 1, 2) for gpus in ticks.during(1.0))
    assert ticks.collector.metrics()["nvml_children"] == 1
    assert ticks.collector.metrics()["gpus_apart"] == 0


@pytest.mark.slow
def test_a_child_that_dies_costs_only_the_gpu_that_ended_it(ticks_of):
    """After one death each GPU is read apart: the others stay, and the one that kills is tried again."""
    ticks = ticks_of("2", "1:die")

    metrics = ticks.collector.metrics
    ticks.until(lambda gpus: has_power(gpus, 0) and metrics()["nvml_child_restarts_total"] == 2)
    assert all(has_power(gpus, 0) for gpus in ticks.during(1.0))
    before = ticks.collector.metrics()["nvml_child_restarts_total"]
    ticks.ahead += 6.0

    ticks.until(lambda _: ticks.collector.metrics()["nvml_child_restarts_total"] > before)


def test_a_gpu_that_is_taken_out_stays_missing_under_its_name(ticks_of, tmp_path):
    """NVML counts anew without it; the GPUs behind it keep their names, and its own waits for it."""
    there = tmp_path / "gpus"
    there.write_text("0 1 2 3")
    ticks = ticks_of(str(there), listed=lambda: there.read_text().split())
    ticks.until(lambda gpus: has_power(gpus, 0, 1, 2, 3))

    there.write_text("0 1 3")
    gpus = ticks.until(lambda gpus: has_power(gpus, 0, 1, 3) and not has_power(gpus, 2))

    assert gpus["3"]["gpu.power_watts"] == 403.0
    assert gpus["2"] == {}
    assert ticks.collector.gpu_uuids() == {f"GPU-{i}": i for i in range(4)}
    there.write_text("0 1 2 3 9")
    gpus = ticks.until(lambda gpus: has_power(gpus, 0, 1, 2, 3, 4))
    assert [gpus[name]["gpu.power_watts"] for name in "01234"] == [400.0, 401.0, 402.0, 403.0, 409.0]


@pytest.mark.slow
def test_a_gpu_that_the_driver_lost_is_looked_for_with_new_handles(ticks_of, tmp_path):
    """It has no values while it is gone, costs the others nothing, and is back with the next child."""
    lost = tmp_path / "lost"
    lost.touch()
    ticks = ticks_of("2", f"1:gone:{lost}")
    ticks.until(lambda gpus: has_power(gpus, 0))

    ticks.ahead += PAUSE_SECONDS[0] + 1
    assert all(has_power(gpus, 0) and not has_power(gpus, 1) for gpus in ticks.during(1.0))
    lost.unlink()

    ticks.until(lambda gpus: has_power(gpus, 0, 1))


def test_the_devices_are_released_when_wanted(ticks_of, tmp_path, monkeypatch):
    """No process holds them then, the GPUs stay in the record without values, and the sample gives the
    reason."""
    devices = tmp_path / "nvidia0"
    devices.touch()
    monkeypatch.setenv("FIXTURE_DEVICES", str(devices))
    wanted = [False]
    ticks = ticks_of("2", "1:hang", released=lambda wall: wanted[0])
    ticks.until(lambda gpus: has_power(gpus, 0))
    assert holders(devices)

    wanted[0] = True
    reading = ticks()

    assert not holders(devices)
    assert reading.gpu == {"0": {}, "1": {}}
    assert reading.labels == {"gpus": "released"}
    assert ticks.collector.metrics()["gpus_released"] == 1
    wanted[0] = False
    assert ticks().labels == {"gpus": "released"}, "until the first of them has answered"
    ticks.until(lambda gpus: has_power(gpus, 0))
    assert not ticks().labels


def holders(path):
    """Which processes have ``path`` open."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if entry.readlink() == path:
                found.append(entry.parts[2])
        except OSError:
            continue
    return found


@pytest.mark.slow
def test_a_machine_without_a_driver_has_no_gpus(ticks_of, caplog):
    """Without NVML there are no instances, which is reported; the driver is looked for again after a
    while."""
    caplog.set_level("INFO", "exporters")
    ticks = ticks_of("none")

    ticks.until(lambda _: "no GPU is read" in caplog.text)
    assert not any(ticks.during(1.0))

    assert ticks.collector.metrics()["nvml_child_restarts_total"] == 0
    assert caplog.text.count("no GPU is read") == 1
    assert RETRY_WITHOUT_DRIVER_SECONDS > 60


def test_a_child_that_cannot_be_started_is_no_error():
    """A missing interpreter leaves the collector empty."""
    collector = NvmlCollector(["/nonexistent/python"])

    assert collector.collect(Instant(wall=1.0, monotonic=1.0)).gpu == {}
    collector.close()
