"""What stays as it should not be for minutes is a finding, without step times and whatever else is read."""

import pytest

from alerts.cases.lifecycle import NOTIFIED
from streams.pipeline import local_pipeline
from tests.streams.node.node_samples import HOST, node_sample

T0, TICK, ONSET = 1_795_160_000.0, 15, 60
FULL = {"nic.port.up": 1, "nic.port.speed_bits_per_second": 400e9}


def found(samples):
    """The kinds and severities of the findings that open, and the seconds from the onset to each."""
    pipeline, opened = local_pipeline(), dict[tuple[str, str], float]()
    for sample in samples:
        for finding in pipeline.process(sample):
            if finding.status in NOTIFIED:
                opened.setdefault((finding.kind, finding.severity), finding.detected_at - T0 - ONSET)
    return opened


def ports(change, *, seconds=600, job=None):
    """A node with two ports, of which the second becomes so at the onset."""
    for t in range(0, seconds, TICK):
        second = FULL | (change if t >= ONSET else {})
        yield node_sample(T0 + t, gpus=[{}], ports=[FULL, second], schema=2, job=job)


def memory(wait, *, seconds=600):
    for t in range(0, seconds, TICK):
        host = HOST | {"host.pressure.memory_some_ratio": wait if t >= ONSET else 0.0}
        yield node_sample(T0 + t, gpus=[{"gpu.utilization_ratio": 0.98}], host=host)


def throttled(bit, *, util=0.99, seconds=600):
    """A node of four GPUs whose clocks nobody reads, of which one states from the onset on why it is slow."""
    for t in range(0, seconds, TICK):
        gpus = [
            {
                "gpu.utilization_ratio": util,
                "gpu.throttle_reasons": bit if gpu == 2 and t >= ONSET else 0,
            }
            for gpu in range(4)
        ]
        yield node_sample(T0 + t, gpus=gpus, host=HOST)


@pytest.mark.parametrize(("bit", "kind"), [(0x40, "throttle.thermal"), (0x80, "throttle.power")])
def test_a_gpu_whose_hardware_holds_it_down_for_minutes_is_told(bit, kind):
    """The driver says so itself; no clock and no step time is needed."""
    [(key, after)] = found(throttled(bit)).items()
    assert key == (kind, "warning")
    assert 180 <= after <= 180 + 2 * TICK


def test_a_port_that_stays_slow_is_told():
    [(key, after)] = found(ports({"nic.port.speed_bits_per_second": 200e9})).items()
    assert key == ("link.nic_slow", "warning")
    assert 300 <= after <= 300 + 2 * TICK


@pytest.mark.parametrize("job", [None, "j"])
def test_a_port_that_stays_down_is_an_error(job):
    """Though one that is down for a moment is none, and its job may have died with it."""
    opened = found(ports({"nic.port.up": 0}, job=job))
    assert opened["link.nic_flap", "error"] <= 300 + 2 * TICK


def errors_then_down(ports, *, job=None):
    """Ports of which the last has errors, and goes down at the onset."""
    for t in range(0, 600, TICK):
        bad = {"nic.port.symbol_errors_total": 500 * min(t, ONSET), "nic.port.up": int(t < ONSET)}
        yield node_sample(T0 + t, gpus=[{}], ports=[*[FULL] * (ports - 1), bad], schema=2, job=job)


@pytest.mark.parametrize("job", [None, "j"])
def test_a_port_that_goes_down_after_errors_is_an_error_beside_them(job):
    """Also within the minute in which one finding explains another: a lost link is more than its errors."""
    opened = found(errors_then_down(4, job=job))
    assert {("link.nic_errors", "warning"), ("link.nic_flap", "error")} <= opened.keys()
    assert opened["link.nic_flap", "error"] <= 10 + 2 * TICK


def test_the_only_port_of_a_node_that_stays_down_is_an_error():
    """No other port can tell whether it is the network, but five minutes are no reboot of its switch."""
    opened = found(errors_then_down(1))
    assert opened.keys() == {("link.nic_errors", "warning"), ("link.nic_flap", "error")}
    assert 300 <= opened["link.nic_flap", "error"] <= 300 + 2 * TICK


def test_ports_that_are_all_down_accuse_none_of_them():
    """A switch, or work on the node: no single port stands out."""
    down = [{"nic.port.up": 0}, {"nic.port.up": 0}]
    samples = (
        node_sample(T0 + t, gpus=[{}], ports=down if t >= ONSET else [FULL, FULL], schema=2, job="j")
        for t in range(0, 600, TICK)
    )
    assert found(samples) == {}


def nvlink(metric, rate, *, seconds=600):
    """A node of four GPUs, at one of which a counter of NVLink errors rises so fast from the onset on."""
    for t in range(0, seconds, TICK):
        gpus = [{metric: int(rate * max(t - ONSET, 0)) if gpu == 2 else 0} for gpu in range(4)]
        yield node_sample(T0 + t, gpus=gpus, host=HOST)


@pytest.mark.parametrize(
    ("metric", "rate"), [("gpu.nvlink.crc_errors_total", 120), ("gpu.nvlink.replay_errors_total", 1.2)]
)
def test_a_link_whose_errors_go_on_for_minutes_is_reported(metric, rate):
    """A transfer that is repeated now and then is none; a link that does so all the time is slower."""
    [(key, after)] = found(nvlink(metric, rate)).items()
    assert key == ("link.nvlink_degraded", "warning")
    assert 240 <= after <= 300 + 2 * TICK


def test_a_host_that_stays_short_of_memory_is_told():
    [(key, after)] = found(memory(0.35)).items()
    assert key == ("host.memory_pressure", "warning")
    assert 300 <= after <= 300 + 2 * TICK


@pytest.mark.parametrize(
    "samples",
    [
        ports({"nic.port.speed_bits_per_second": 200e9}, seconds=ONSET + 240),
        ports({"nic.port.speed_bits_per_second": 390e9}),
        memory(0.35, seconds=ONSET + 240),
        memory(0.05),
        throttled(0x40, seconds=ONSET + 150),
        throttled(0x20),
        throttled(0x41),
        nvlink("gpu.nvlink.crc_errors_total", 90),
        nvlink("gpu.nvlink.replay_errors_total", 0.9),
        nvlink("gpu.nvlink.replay_errors_total", 2, seconds=ONSET + 150),
    ],
    ids=[
        "slow for a while",
        "rounded",
        "short of memory for a while",
        "a little short",
        "hot for a while",
        "software thermal control",
        "idle",
        "fewer CRC errors",
        "fewer replays",
        "replays for a while",
    ],
)
def test_what_passes_or_is_little_is_not(samples):
    assert found(samples) == {}
