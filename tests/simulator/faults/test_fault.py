import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator import Fault
from simulator.faults.catalogue import CATALOGUE
from simulator.faults.fault import parse_fault


@pytest.mark.parametrize(
    "field",
    ["onset=nan", "onset=inf", "onset=-1", "magnitude=nan", "magnitude=-inf", "magnitude=inf", "duration=nan",
     "duration=0", "duration=-5", "period=nan", "period=0", "duty=0", "duty=1.5", "onset=soon", "colour=red"],
)  # fmt: skip
def test_a_fault_with_an_impossible_number_is_refused(field):
    """The message names the fault as it was written and what is wrong with it."""
    text = f"silent_slow:node=1,onset=5,{field}" if "onset" not in field else f"silent_slow:node=1,{field}"
    with pytest.raises(ValueError, match="--fault silent_slow") as refused:
        parse_fault(text)
    assert field.partition("=")[0] in str(refused.value)


@pytest.mark.parametrize("fields", ["node=1", "node=1,onset=5", "colour=red"])
def test_an_unknown_fault_is_named_first(fields):
    """With the one that is nearest: its fields are of no interest."""
    with pytest.raises(ValueError, match=r"unknown fault 'silent_slw' \(is it 'silent_slow'\?\)"):
        parse_fault(f"silent_slw:{fields}")


@pytest.mark.parametrize("kind", CATALOGUE)
def test_what_is_not_written_is_as_usual_for_the_kind(kind):
    """A fault of which only the place is given has a size and shape from the catalogue's ranges."""
    fault = parse_fault(f"{kind}:node=1,onset=5")
    row = CATALOGUE[kind]
    assert row.size[0] <= fault.magnitude <= row.size[1]
    assert fault.shape in row.shapes
    assert (fault.onset, fault.duration) == (5, math.inf)


def test_a_ladder_climbs_in_equal_rungs():
    """A fault that comes in rungs develops by a quarter every period."""
    fault = Fault(kind="congestion", node=0, onset=10, shape="ladder", period=5, duration=100)
    assert [fault.severity(t) for t in (9, 10, 15, 20, 25, 90, 110)] == [0, 0.25, 0.5, 0.75, 1, 1, 0]


def test_spells_are_the_stretches_in_which_it_is_on():
    """A square wave comes and goes until its duration is over, a step once."""
    wave = Fault(kind="nic_flap", node=0, onset=10, shape="square", period=10, duty=0.3, duration=25)
    assert list(wave.spells(100)) == [(10, 13), (20, 23), (30, 33)]
    assert list(wave.spells(15)) == [(10, 13)]
    assert list(Fault(kind="nic_crash", node=0, onset=10, duration=5).spells(100)) == [(10, 15)]


@given(st.integers(0, 40), st.integers(1, 60), st.integers(1, 20), st.sampled_from([0.25, 0.5, 1.0]))
def test_a_fault_is_on_in_its_spells_and_for_what_remains_of_them(onset, duration, period, duty):
    """Its value at a moment agrees with the intervals in which it is on."""
    wave = Fault(
        kind="nic_flap", node=0, onset=onset, shape="square", period=period, duty=duty, duration=duration
    )
    spells = list(wave.spells(200))
    for t in np.arange(0, 120, 0.5).tolist():
        inside = [off for on, off in spells if on <= t < off]
        assert wave.severity(t) == bool(inside)
        if inside and duty < 1:
            assert wave.remaining(t) == inside[0] - t


@pytest.mark.parametrize(("t", "severity", "factor"), [(9, 0, 1), (10, 0, 1), (25, 0.5, 1.15), (40, 1, 1.3)])
def test_a_ramp_develops_in_proportion(t, severity, factor):
    """Halfway up it slows by half of what it will."""
    dose = Fault(kind="silent_slow", node=0, onset=10, shape="ramp", period=30, magnitude=1.3).dose(t)
    assert (dose.severity, dose.factor) == pytest.approx((severity, factor))
