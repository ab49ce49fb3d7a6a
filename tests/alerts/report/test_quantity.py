"""Numbers with units, as people write them."""

import pytest

from alerts.report.quantity import counted, quantity, unit_of


@pytest.mark.parametrize(
    ("metric", "unit", "expected"),
    [
        ("gpu.throttle.thermal_nanoseconds_total", "1", "ns"),
        ("gpu.nvlink.tx_bytes_total", None, "B"),
        ("gpu.energy_joules_total", "", "J"),
        ("gpu.throttle.thermal_nanoseconds_total", "s", "s"),
        ("gpu.ecc.corrected_total", "1", "1"),
        ("gpu.energy_millijoules_total", "1", "mJ"),
        ("gpu.clock.sm_hz", "1", "Hz"),
        ("nic.port.speed_bits_per_second", "1", "bit/s"),
        ("gpu.temp.margin_celsius", "1", "Cel"),
        ("gpu.throttle_reasons", "1", "bitmask"),
    ],
)
def test_a_counter_has_the_unit_of_its_name(metric, unit, expected):
    """Only where the evidence names none."""
    assert unit_of(metric, unit) == expected


def test_nanoseconds_are_read_as_seconds():
    """Nobody reads 3,000,000,000."""
    assert (quantity(3e9, "ns"), quantity(2.5e7, "ns")) == ("3 s", "25 ms")


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1.755e9, "Hz", "1.75 GHz"),
        (0.0312, "s", "31.2 ms"),
        (2.904, "s", "2.904 s"),
        (0.93, "ratio", "93 %"),
        (3e9, "1", "3,000,000,000"),
        (1.204, "1", "1.204"),
        (596.8, "W", "596.8 W"),
        (0.0, "s", "0 s"),
        (-0.5, "s", "-500 ms"),
        (None, "s", "–"),
        (2e11, "bit/s", "200 Gbit/s"),
        (1.2e6, "mJ", "1.2 kJ"),
        (84.0, "Cel", "84 °C"),
        (2.5e7, "By", "25 MB"),
    ],
)
def test_a_quantity_has_its_unit_and_few_digits(value, unit, text):
    """SI prefixes where the unit takes them."""
    assert quantity(value, unit) == text


def test_one_is_singular():
    """Every other number is not, and thousands are separated."""
    assert [counted(n, "rank") for n in (0, 1, 2, 1024)] == [
        "0 ranks",
        "1 rank",
        "2 ranks",
        "1,024 ranks",
    ]


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        (64.0, "HW thermal slowdown"),
        (72.0, "HW slowdown, HW thermal slowdown"),
        (0.0, "none"),
        (1024.0, "bit 1024"),
        (36.5, "36.5"),
        (-1.0, "-1"),
    ],
)
def test_throttle_reasons_have_names(mask, text):
    """Those of nvml.h; a bit that is newer has its number, and so has a mean of masks."""
    assert quantity(mask, "bitmask") == text
