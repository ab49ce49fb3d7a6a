"""How likely the cause of a finding is, for people."""

from collections.abc import Mapping
from typing import Any

from alerts.kind import Standing
from alerts.kinds import kind_of


def cause_share(cause: Mapping[str, Any]) -> float | None:
    """Return the share of a cause of ``finding.v1`` among its hypotheses.

    None where a symptom stands alone: all of nothing. It explains nothing by itself, whether telemetry that
    would show a cause was looked at or never sent.
    """
    share = float(cause.get("confidence") or 0.0)
    alone = share >= 1.0 and kind_of(str(cause.get("hypothesis"))).standing is Standing.SYMPTOM
    return None if alone else share
