"""Ratios to peers and their bytes."""

import base64

import numpy as np
import pytest

from api.routes.dashboard.heat import Heat, ratios
from store.dashboard.steps import BinValues

NAN = float("nan")


def roll_ups(bins):
    """Roll-ups from ``{bin: [(rank, value), …]}``."""
    made = []
    for col, cells in bins.items():
        ranks, values = zip(*cells, strict=True)
        packed = np.array(ranks, ">i4").tobytes(), np.array(values, ">f8").tobytes()
        made.append(BinValues(col, 0, 0, None, *packed))
    return made


def test_a_rank_is_compared_with_its_stage_alone():
    """The second stage takes three times as long, which is its work."""
    found = roll_ups({0: [(0, 1.0), (1, 1.5), (2, 1.0), (3, 3.0), (4, 3.0)]})
    shown = ratios(found, {0: 0, 1: 0, 2: 0, 3: 1, 4: 1}, 1)
    assert {number: row.tolist() for number, row in shown.items()} == {
        **{0: [1.0], 1: [1.5], 2: [1.0]},
        **{3: [1.0], 4: [1.0]},
    }


def test_the_median_is_of_those_that_have_a_value():
    """Of an even number the middle of two; a bin without any value stays empty, as does a time of 0."""
    found = roll_ups({0: [(0, 1.0), (1, 3.0), (2, NAN), (3, 0.0)], 2: [(0, 2.0), (2, 2.0), (3, 5.0)]})
    shown = np.array(list(ratios(found, {}, 3).values()))
    np.testing.assert_allclose(shown, [[0.5, NAN, 1.0], [1.5, NAN, NAN], [NAN, NAN, 1.0], [NAN, NAN, 2.5]])


def test_roll_ups_of_one_bin_are_averaged():
    """Also those of two attempts."""
    shown = ratios(roll_ups({0: [(0, 1.0), (1, 2.0), (0, 3.0)], 1: [(1, 4.0), (0, 4.0)]}), {}, 2)
    assert [row.tolist() for row in shown.values()] == [[1.0, 1.0], [1.0, 1.0]]


def test_a_job_without_values_has_no_ratios():
    """Nothing, and no error."""
    assert ratios([], {}, 5) == {}
    assert ratios(roll_ups({1: [(0, NAN), (1, NAN)]}), {}, 5) == {}


def test_codes_and_largest_cells():
    """Clipped to the scale, missing where nothing was set; the larger of two values of a cell stays."""
    heat = Heat(2, 3)
    heat.add(0, [0.9, 1.25, NAN])
    heat.add(0, [NAN, 1.05, NAN])
    heat.add(1, 2.0, 2)
    shown = heat.shown()
    assert list(base64.b64decode(shown["data"])) == [0, 128, 255, 255, 255, 252]
    assert shown["top"] == [[1, 2, 2.0], [0, 1, 1.25]]


@pytest.mark.parametrize("cells", [0, 1, 500])
def test_at_most_two_hundred_cells_are_listed(cells):
    """The largest first."""
    heat = Heat(1, 500)
    heat.add(0, np.concatenate([1.1 + np.arange(cells) / 1000, np.full(500 - cells, 1.0)]))
    top = heat.shown()["top"]
    assert len(top) == min(cells, 200)
    assert top == sorted(top, key=lambda cell: -cell[2])
