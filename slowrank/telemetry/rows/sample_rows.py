"""Checks of one sample row: that it names its device, and that its value can be one of its metric."""

from collections.abc import Mapping
from typing import Any

from slowrank.telemetry.checks import BadRecord

# DCGM stands for "no value" by these and the three numbers after each (dcgm_structs.h: DCGM_INT32_BLANK,
# DCGM_FP64_BLANK, DCGM_INT64_BLANK); the last four are 2^63 as a float.
_BLANK_INT32, _BLANK_FLOAT = 2**31 - 16, 2.0**47
TOO_LARGE = 2**63 - 16

# What an instance of a metric is, by the first letters of its name; those of the host have none.
_INSTANCE = {"gpu": "the index or UUID of the GPU", "nic": "device/port"}

# Chosen: the rate of a counter of seconds may exceed 1 by what a scrape comes late; a percentage is beyond.
_RATIO_SLACK = 0.5


def is_dcgm_blank(value: float) -> bool:
    """Return whether a value is one that DCGM gives where it has none.

    >>> is_dcgm_blank(2147483632), is_dcgm_blank(140737488355328.0), is_dcgm_blank(1.98e9)
    (True, True, False)
    """
    return 0 <= value - _BLANK_INT32 <= 3 or 0 <= value - _BLANK_FLOAT <= 3 or abs(value) >= TOO_LARGE


def fault(row: Mapping[str, Any]) -> tuple[str, BadRecord] | None:
    """Return the field of a row with a valid metric that cannot be right, and why; None where all may be.

    >>> fault({"metric": "gpu.utilization_ratio", "instance": "0", "value": 97})[1].detail
    'gpu.utilization_ratio is 97, not 0 to 1; a percentage is to be divided by 100'
    """
    metric, value = str(row.get("metric")), row.get("value")
    device = _INSTANCE.get(metric.partition(".")[0])
    if device and row.get("instance") in (None, ""):
        return "instance", BadRecord("bad_label", f"{metric} needs instance: {device}")
    try:
        number = float("nan" if value is None else value)
    except (TypeError, ValueError, OverflowError):
        return None  # Refused where it is read.
    if metric.startswith("gpu.") and is_dcgm_blank(number):
        detail = f"{metric} is {str(value)[:40]}, by which DCGM means no value; leave the row out"
        return "value", BadRecord("bad_number", detail)
    if metric.endswith("_ratio") and (number < -_RATIO_SLACK or number > 1 + _RATIO_SLACK):
        percent = "; a percentage is to be divided by 100" if number > 1 else ""
        detail = f"{metric} is {str(value)[:40]}, not 0 to 1{percent}"
        return "value", BadRecord("bad_number", detail)
    return None
