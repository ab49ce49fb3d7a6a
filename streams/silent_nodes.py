"""After how long without a record a node is unheard of, stale or silent, for node and cluster stage."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SilenceConfig:
    """Seconds of event time without a record.

    A node is unheard of after ``unheard`` seconds, its exporter stale after ``stale``, both after four of its
    reports at least; it is silent after ``silent`` and eight. After ``expected`` seconds it has left. If it
    sends again within ``remembered``, the time for which a finding is kept, its suspicions are cleared.
    From ``certain`` on, missing records alone open a finding, without evidence of another family.
    All are chosen: a few missed ticks for what only hints, minutes for what opens a finding or gives up a
    node, so that a reboot of usual length does neither.
    """

    stale: float = 10.0
    silent: float = 30.0
    certain: float = 300.0
    expected: float = 600.0
    remembered: float = 48 * 3600.0
    unheard: float = 5.0


def silent_after(unheard_after: float) -> float:
    """Return after how many seconds a node is silent that is unheard of after ``unheard_after`` seconds."""
    return max(SilenceConfig().silent, 2 * unheard_after)
