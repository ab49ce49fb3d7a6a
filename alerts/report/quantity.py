"""Writes measured numbers with their units for people."""

# Units of telemetry that take SI prefixes.
_PREFIXED = frozenset({"Hz", "B", "B/s", "bit/s", "W", "J"})
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


# Ends of the names of metrics that evidence quotes as a plain number.
_UNITS_OF_NAMES = {
    "_nanoseconds_total": "ns",
    "_bytes_total": "B",
    "_millijoules_total": "mJ",
    "_joules_total": "J",
    "_bits_per_second": "bit/s",
    "_seconds": "s",
    "_celsius": "Cel",
    "_hz": "Hz",
    "_watts": "W",
    "throttle_reasons": "bitmask",
}

# Units of telemetry (UCUM) as people write them.
_WRITTEN = {"Cel": "°C", "By": "B", "By/s": "B/s"}
# Units that nobody reads: how many of them are one of another.
_PARTS = {"ns": (1e9, "s"), "mJ": (1e3, "J")}

# NVML's reasons to lower a GPU's clocks, by bit (``nvmlClocksEventReason…`` of nvml.h).
_REASONS = {
    1: "GPU idle",
    2: "application clocks",
    4: "SW power cap",
    8: "HW slowdown",
    16: "sync boost",
    32: "SW thermal slowdown",
    64: "HW thermal slowdown",
    128: "HW power brake",
    256: "display clocks",
}


def unit_of(metric: str, unit: str | None) -> str | None:
    """Return the unit of a value of a metric: ``unit`` where it has one, else what the metric's name says."""
    if unit not in (None, "", "1"):
        return unit
    return next((found for end, found in _UNITS_OF_NAMES.items() if metric.endswith(end)), unit)


def amount(value: float) -> str:
    """Return a number with three digits, and never as a power of ten: ``0.048``, ``14.8``, ``20,150``."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def deviation(mad: float) -> float:
    """Return the standard deviation that a median absolute deviation is of, in a normal distribution."""
    return 1.4826 * mad


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 node``, ``1,024 ranks``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def quantity(value: float | None, unit: str | None = "") -> str:
    """Return a number with its unit: ``1.76 GHz``, ``31 ms``, ``93 %``; a dash for None.

    A ``bitmask`` is of throttle reasons: ``HW thermal slowdown``.
    """
    if value is None:
        return "–"
    if unit == "1" or not unit:
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    if unit == "bitmask":
        return _reasons(value)
    if unit == "ratio":
        return f"{100 * value:.3g} %"
    if unit in _PARTS:
        size, whole = _PARTS[unit]
        return quantity(value / size, whole)
    unit = _WRITTEN.get(unit, unit)
    if unit == "s" and 0 < abs(value) < 1:
        return f"{1000 * value:.3g} ms"
    if unit in _PREFIXED:
        for size, prefix in _PREFIXES:
            if abs(value) >= size:
                return f"{value / size:.3g} {prefix}{unit}"
    return f"{value:.4g} {unit}"


def _reasons(value: float) -> str:
    """Return the names of the reasons in a mask; a number that is none, as a mean is, stays one."""
    mask = int(value)
    if mask != value or mask < 0:
        return quantity(value)
    bits = [1 << i for i in range(mask.bit_length()) if mask >> i & 1]
    return ", ".join(_REASONS.get(bit, f"bit {bit}") for bit in bits) or "none"
