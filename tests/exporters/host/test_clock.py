import sys

import pytest

from exporters.host.chrony import ChronyClient
from exporters.host.clock import (
    MAX_ERROR_SECONDS,
    OFFSET,
    STA_CLOCKERR,
    STA_NANO,
    STA_PLL,
    STA_UNSYNC,
    ClockCollector,
    KernelClock,
    read_kernel_clock,
    seconds_ahead,
)


class Chrony(ChronyClient):
    """A chronyd that gives prepared answers, tick by tick."""

    def __init__(self, *answers):
        super().__init__()
        self.answers = list(answers)

    def ahead(self, monotonic):
        return self.answers.pop(0)


def kept(offset, status=STA_PLL, maxerror=20_000):
    return KernelClock(offset=offset, maxerror=maxerror, status=status)


def test_a_correction_to_be_added_is_a_clock_behind():
    """The kernel keeps microseconds, or nanoseconds where its status has STA_NANO; ahead is positive."""
    assert seconds_ahead(kept(250_000)) == -0.25
    assert seconds_ahead(kept(-250_000_000, STA_PLL | STA_NANO)) == 0.25
    assert seconds_ahead(kept(0)) == 0.0


@pytest.mark.parametrize(
    "clock",
    [
        None,
        kept(0, status=STA_UNSYNC),
        kept(0, status=STA_PLL | STA_UNSYNC),
        kept(0, status=STA_PLL | STA_CLOCKERR),
        kept(0, status=0),
        kept(0, maxerror=int(MAX_ERROR_SECONDS * 1e6) + 1),
    ],
    ids=["no call", "never kept", "kept no more", "clock error", "steered without offsets", "long ago"],
)
def test_a_clock_that_nobody_keeps_has_no_offset(clock):
    """An offset of zero would mean a correct clock, which is unknown."""
    assert seconds_ahead(clock) is None


def test_chronyd_goes_before_the_kernel(instants):
    """chronyd leaves no offset in the kernel; where it does not answer, the kernel's is read."""
    collector = ClockCollector(Chrony(None, 3.5), lambda: kept(100_000))

    assert collector.collect(instants(0)).host == {OFFSET: -0.1}
    assert collector.collect(instants(1)).host == {OFFSET: 3.5}
    assert collector.metrics() == {"clock_synchronised": 1.0}


def test_a_clock_that_is_not_kept_is_missing_and_counted_as_such(instants):
    """The column is missing, and /metrics shows that no service keeps the clock."""
    collector = ClockCollector(Chrony(None), lambda: kept(0, status=STA_UNSYNC))

    assert collector.collect(instants(0)).host == {OFFSET: None}
    assert collector.metrics() == {"clock_synchronised": 0.0}


@pytest.mark.skipif(sys.platform != "linux", reason="adjtimex is Linux's")
def test_the_kernel_of_this_machine_answers_without_rights():
    """A bound on the error of the clock is within the 16 s at which the kernel gives it up."""
    clock = read_kernel_clock()

    assert clock is not None
    assert 0 <= clock.maxerror <= 16_000_000
