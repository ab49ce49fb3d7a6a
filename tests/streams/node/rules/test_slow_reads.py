"""GPUs that answer their driver slowly, that are gone, and that were let go on purpose."""

import numpy as np
import pytest

from alerts.cases.lifecycle import NOTIFIED
from streams.pipeline import local_pipeline
from tests.streams.node.node_samples import HOST, node_sample

T0 = 1_795_160_000.0
GPUS = 8
ONSET = 60


def samples(columns_of, *, seconds=140, labels=None):
    """One node at 1 Hz; ``columns_of`` changes the columns of a GPU at a second, ``labels`` the sample's."""
    rng = np.random.default_rng(4)
    for t in range(seconds):
        gpus = [
            columns_of(
                t,
                gpu,
                {
                    "gpu.utilization_ratio": 0.97,
                    "gpu.clock.sm_hz": 1.7e9 + rng.normal(0, 5e6),
                    "gpu.power_watts": 600 + rng.normal(0, 5),
                    "gpu.temp_celsius": 60 + rng.normal(0, 0.4),
                    "gpu.energy_millijoules_total": 600_000 * t,
                    "gpu.nvml_call_seconds": 0.02 * rng.lognormal(0, 0.3),
                },
            )
            for gpu in range(GPUS)
        ]
        host = HOST | {"host.context_switches_total": 1000 * t}
        yield node_sample(T0 + t, gpus=gpus, host=host, labels=labels(t) if labels else None)


def found(columns_of, **more):
    """Every finding that people were told of, by kind and GPU, with its last version."""
    pipeline, opened = local_pipeline(), {}
    for record in samples(columns_of, **more):
        for finding in pipeline.process(record):
            if finding.status in NOTIFIED:
                opened[finding.kind, finding.subject.gpu_index] = finding
    return opened


def slow(seconds, *, gpu=5, every=1):
    """GPU ``gpu`` takes ``seconds`` to read from the onset on: its values come ``every`` so many ticks."""

    def columns(t, number, healthy):
        if number != gpu or t < ONSET:
            return healthy
        read = {"gpu.nvml_call_seconds": seconds}
        return healthy | read if t % every == 0 else read

    return columns


@pytest.mark.parametrize(("seconds", "every"), [(0.3, 2), (2.0, 3), (8.0, 9)])
def test_a_gpu_that_answers_slowly_is_named_by_a_finding(seconds, every):
    """Below a second too, and it did not fall off the bus, although most ticks are without its values."""
    [(key, finding)] = found(slow(seconds, every=every)).items()

    assert key == ("gpu.slow_reads", 5)
    assert (finding.severity, finding.action.code) == ("warning", "RUN_DIAG")
    assert finding.onset == T0 + ONSET
    assert finding.detected_at - finding.onset <= 20.0
    [seen] = [e for e in finding.evidence if e.metric == "gpu.nvml_call_seconds"]
    assert seen.value == pytest.approx(seconds)


def test_a_healthy_gpu_is_not_slow():
    """Nor are reads that are slow now and then, or all GPUs' reads that take twice as long as usual."""
    assert found(lambda t, gpu, healthy: healthy) == {}
    assert found(slow(1.5)) != {}
    assert found(lambda t, gpu, healthy: healthy | {"gpu.nvml_call_seconds": 0.9 if t % 5 else 0.02}) == {}


def test_a_driver_that_is_slow_for_all_gpus_blames_none_of_them():
    """What they all wait for is the node's."""
    [(key, finding)] = found(
        lambda t, gpu, healthy: healthy | {"gpu.nvml_call_seconds": 1.0 + 0.1 * gpu}
    ).items()

    assert key == ("gpu.slow_reads", None)
    assert finding.subject.type == "node"


def test_a_gpu_that_never_answers_again_is_gone_within_thirty_seconds():
    """Slow at first, then no longer taken for slow."""

    def wedged(t, gpu, healthy):
        return healthy if gpu != 5 or t < ONSET else {"gpu.nvml_call_seconds": 0.3 + t - ONSET}

    opened = found(wedged)

    assert opened["xid.79", 5].detected_at - (T0 + ONSET) <= 30.0


def test_a_gpu_that_reads_as_nothing_at_once_is_gone():
    """A driver that says so at once is not slow."""
    [(key, finding)] = found(
        lambda t, gpu, healthy: healthy if gpu != 5 or t < ONSET else {"gpu.nvml_call_seconds": 0.001}
    ).items()

    assert key == ("xid.79", 5)
    assert finding.detected_at - finding.onset <= 5.0


def test_gpus_that_were_let_go_on_purpose_are_not_missed():
    """For a reset; one that does not come back afterwards is."""

    def columns(t, gpu, healthy):
        return {} if ONSET <= t < 100 or (t >= 100 and gpu == 5) else healthy

    def labels(t):
        return {"gpus": "released"} if ONSET <= t < 100 else {}

    assert found(columns, labels=labels, seconds=100) == {}
    [(key, finding)] = found(columns, labels=labels).items()
    assert key == ("xid.79", 5)
    assert finding.onset == T0 + 100


def test_a_node_that_sends_its_host_and_none_of_its_gpus_is_told():
    """Its exporter works: what fails is the driver, or what reads the GPUs."""
    [(key, finding)] = found(lambda t, gpu, healthy: healthy if t < ONSET else {}).items()

    assert key == ("gpu.unreadable", None)
    assert finding.title == "No GPU of n can be read"
    assert "nvidia-smi" in finding.action.text
    assert (finding.severity, finding.onset) == ("warning", T0 + ONSET)
