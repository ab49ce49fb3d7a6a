"""GPUs whose clock is far below their siblings', and nodes that heat slows down, in samples alone."""

import numpy as np
import pytest

from alerts.cases.lifecycle import NOTIFIED
from streams.pipeline import local_pipeline
from tests.streams.node.node_samples import HOST, node_sample

T0, GPUS, TICK, ONSET, SECONDS = 1_795_160_000.0, 4, 10, 900, 1800
SW_THERMAL, POWER_BRAKE, HW_SLOWDOWN, SW_POWER_CAP = 32, 128, 8, 4


def found(change, *, job_id=None):
    """The findings that were opened of one node under full load at its power limit, by kind and GPU;
    ``change`` gives columns of a GPU at a second from the onset on."""
    rng, pipeline, opened = np.random.default_rng(4), local_pipeline(), {}
    for t in range(0, SECONDS, TICK):
        gpus = [
            {
                "gpu.utilization_ratio": 0.98,
                "gpu.clock.sm_hz": 15e6 * round(104 + rng.normal(0, 2)),
                "gpu.power_watts": 690 + rng.normal(0, 5),
                "gpu.temp_celsius": 66 + rng.normal(0, 0.4),
                "gpu.throttle_reasons": SW_POWER_CAP,
                "gpu.energy_millijoules_total": 690_000 * t,
            }
            | (change(t, gpu) if t >= ONSET else {})
            for gpu in range(GPUS)
        ]
        for finding in pipeline.process(node_sample(T0 + t, gpus=gpus, host=HOST, job=job_id)):
            if finding.status in NOTIFIED:
                opened[finding.kind, finding.subject.gpu_index] = finding
    return opened


def locked(reasons, *, gpus=(2,), clock=1.185e9):
    """Some GPUs at a low clock and less power, for such reasons (None: not read)."""

    def change(t, gpu):
        low = {"gpu.clock.sm_hz": clock, "gpu.power_watts": 455.0, "gpu.throttle_reasons": reasons}
        return low if gpu in gpus else {} if reasons is not None else {"gpu.throttle_reasons": None}

    return change


@pytest.mark.parametrize(
    ("reasons", "kind"),
    [
        (0, "clock.low"),
        (SW_THERMAL | SW_POWER_CAP, "throttle.thermal"),
        (POWER_BRAKE | HW_SLOWDOWN, "throttle.power"),
        (HW_SLOWDOWN, "throttle.hw_slowdown"),
    ],
)
def test_a_clock_far_below_its_siblings_for_minutes_is_a_finding(reasons, kind):
    """Without step times too, by the reason that the driver states."""
    [(key, finding)] = found(locked(reasons)).items()

    assert key == (kind, 2)
    assert finding.severity == "warning"
    assert abs(finding.onset - (T0 + ONSET)) <= 2 * TICK
    assert finding.detected_at - (T0 + ONSET) <= 200


def test_where_no_reasons_are_read_less_power_or_the_same_job_excludes_heavier_work():
    """Heavier work than that of the siblings holds a GPU at the power limit; swings of its power do not
    hide that it draws less in the mean."""

    def heavier(t, gpu):
        return locked(None)(t, gpu) | ({"gpu.power_watts": 690.0} if gpu == 2 else {})

    def swinging(t, gpu):
        watts = {"gpu.power_watts": 695.0 if t % 60 < 20 else 400.0}
        return locked(None)(t, gpu) | (watts if gpu == 2 else {})

    assert list(found(locked(None))) == [("clock.low", 2)]
    assert list(found(swinging)) == [("clock.low", 2)]
    assert list(found(heavier, job_id="j")) == [("clock.low", 2)]
    assert found(heavier) == {}
    assert found(lambda t, gpu: locked(None)(t, gpu) | {"gpu.power_watts": None}) == {}


def test_pauses_of_a_job_neither_make_a_clock_low_nor_hide_it():
    """All idle for half a minute every two minutes, in turns of a tick."""

    def pausing(change):
        idle = {"gpu.utilization_ratio": 0.0, "gpu.clock.sm_hz": 3.45e8, "gpu.power_watts": 75.0}
        return lambda t, gpu: idle if (t + TICK * (gpu % 2)) % 120 < 30 else change(t, gpu)

    assert list(found(pausing(locked(0)))) == [("clock.low", 2)]
    assert found(pausing(lambda t, gpu: {})) == {}


def test_other_low_clocks_are_no_finding_by_themselves():
    """A GPU at its power limit, as with heavier work, one a tenth below, and one that waits for work."""
    assert found(locked(SW_POWER_CAP)) == {}
    assert found(locked(0, clock=1.41e9)) == {}
    assert (
        found(lambda t, gpu: locked(0)(t, gpu) | ({"gpu.utilization_ratio": 0.3} if gpu == 2 else {})) == {}
    )


def test_heat_that_slows_all_gpus_of_a_node_is_one_finding_about_the_node():
    """Although no sibling shows how low their clocks are; of half of them each is found by itself."""
    [(key, finding)] = found(locked(SW_THERMAL, gpus=range(GPUS), clock=9.9e8)).items()

    assert key == ("throttle.thermal", None)
    assert (finding.subject.type, finding.severity) == ("node", "warning")
    assert finding.detected_at - (T0 + ONSET) <= 80
    half = found(locked(SW_THERMAL, gpus=(0, 1), clock=9.9e8))
    assert sorted(half) == [("throttle.thermal", 0), ("throttle.thermal", 1)]
