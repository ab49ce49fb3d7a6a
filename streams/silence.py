"""How long a node is silent before it counts as unheard of, stale or silent: for both sides of the log."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SilenceConfig:
    """Seconds of event time without a record.

    A node is unheard of after ``unheard`` seconds, its exporter stale after ``stale``, both after four of its
    reports at least; it is silent after ``silent`` and eight. One unheard for ``expected`` seconds has left;
    what was said of it is taken back if it is heard again within ``remembered``, as long as a finding lasts.
    """

    stale: float = 10.0
    silent: float = 30.0
    # From here on silence alone is a finding, without evidence of another family.
    certain: float = 300.0
    expected: float = 600.0
    remembered: float = 48 * 3600.0
    unheard: float = 5.0


def silent_after(unheard_after: float) -> float:
    """Return after how many seconds a node is silent that is unheard of after ``unheard_after`` seconds."""
    return max(SilenceConfig().silent, 2 * unheard_after)
