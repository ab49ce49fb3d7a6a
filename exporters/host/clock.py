"""The clock offset of this host, from the service that synchronises it; no privileges are needed.

chronyd is queried directly, because it steers the frequency alone and leaves no offset in the kernel. The
offset that ntpd and systemd-timesyncd hand to the kernel is read with ``adjtimex``. Without such a service
the offset is unknown, and the value is missing rather than zero.
"""

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from exporters.collector import Columns, Instant, Reading
from exporters.host.chrony import ChronyClient

OFFSET = "host.clock_offset_seconds"

# Bits of the kernel's clock status (adjtimex(2)).
STA_PLL, STA_UNSYNC, STA_CLOCKERR, STA_NANO = 0x0001, 0x0040, 0x1000, 0x2000

# Beyond this bound on the error the offset is not used. The kernel widens the bound by 500 ppm from one
# correction to the next, which is 1 s in the longest interval of systemd-timesyncd (2,048 s): four of them.
MAX_ERROR_SECONDS = 4.0


class _Timex(ctypes.Structure):
    """``struct timex`` of 64-bit Linux; ``rest`` is space for the fields that are not read."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    )


@dataclass(frozen=True, slots=True)
class KernelClock:
    """The kernel's clock: the correction still to be made, a bound on its error (microseconds), its flags."""

    offset: int
    maxerror: int
    status: int


def read_kernel_clock() -> KernelClock | None:
    """Read the kernel's clock without changing it; None where this is no Linux or a filter forbids it."""
    adjtimex = getattr(ctypes.CDLL(None), "adjtimex", None)
    timex = _Timex()
    # Modes of zero change nothing, which any user may request. -1: a seccomp filter.
    if adjtimex is None or adjtimex(ctypes.byref(timex)) < 0:
        return None
    return KernelClock(offset=timex.offset, maxerror=timex.maxerror, status=timex.status)


def seconds_ahead(clock: KernelClock | None) -> float | None:
    """Return how far the clock is ahead (seconds), None where the kernel has no estimate.

    It has one where a service sets offsets (the PLL is on) and the last one is recent. Such an offset is at
    most half a second: those services step the clock for larger ones.
    """
    if clock is None or clock.status & (STA_UNSYNC | STA_CLOCKERR) or not clock.status & STA_PLL:
        return None
    if clock.maxerror / 1e6 > MAX_ERROR_SECONDS:
        return None
    # The offset is still to be added: it is positive where the clock is behind.
    return -clock.offset / (1e9 if clock.status & STA_NANO else 1e6)


class ClockCollector:
    """Reads chronyd and the kernel once a tick; chronyd has precedence."""

    name = "clock"

    columns: Mapping[str, str] = {OFFSET: "chronyd, ntpd or systemd-timesyncd keeps the clock"}

    def __init__(
        self,
        chrony: ChronyClient | None = None,
        kernel: Callable[[], KernelClock | None] = read_kernel_clock,
    ) -> None:
        self._chrony = chrony or ChronyClient()
        self._kernel = kernel
        self._ahead: float | None = None

    def collect(self, now: Instant) -> Reading:
        ahead = self._chrony.ahead(now.monotonic)
        self._ahead = seconds_ahead(self._kernel()) if ahead is None else ahead
        host: Columns = {OFFSET: self._ahead}
        return Reading(host=host)

    def metrics(self) -> Mapping[str, float]:
        return {"clock_synchronised": float(self._ahead is not None)}

    def close(self) -> None:
        self._chrony.close()
