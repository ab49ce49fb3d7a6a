import math

import pytest

from simulator import Fault
from simulator.catalogue import CATALOGUE
from simulator.faults import parse_fault


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
