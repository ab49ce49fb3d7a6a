"""Change points of one node's level-like series, told apart from what all its devices do together.

A job that starts, pauses or waits moves every GPU of the node at once; that accuses nobody. A change is
passed on when it is for the worse and the distance to the siblings' median made it too, beyond its own noise;
with fewer than three siblings nobody can tell, and nothing is said.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from detectors.change import Change, ChangeConfig, ChangeDetectorBank
from detectors.standardise import Scale
from slowrank.telemetry import Baseline, Evidence, Subject, Suspicion
from slowrank.telemetry.records import Family
from streams.arrays import FloatArray
from streams.suspicions import Claim, Place

HOLD_SECONDS = 10.0
PATIENCE_SECONDS = 60.0
"""A change must have held before it is passed on; if it does not stand out for so long, it is dropped."""

MIN_SIBLINGS = 3
MIN_FLOORS = 3.0
MIN_SIGMAS = 6.0
"""What the distance to the siblings must have moved by: the smallest credible noise, and the measured one."""

REFRESH_SECONDS = 60.0

Owner = Literal["gpu", "nic", "host"]


@dataclass(frozen=True, slots=True)
class Watched:
    """A metric under watch: how it is scaled, which direction is bad, what a change argues for.

    A change counts only when its worse side is beyond ``from_level`` (before a fall, after a rise): a
    temperature that rises from 40 to 50 °C or a port that was hardly used says nothing.
    """

    owner: Owner
    metric: str
    unit: str
    scale: Scale
    bad: Literal[-1, 1]
    from_level: float
    family: Family
    kind: str
    weight: float


WATCHED = (
    Watched(
        "gpu",
        "gpu.clock.sm_hz",
        "Hz",
        Scale("identity", 15e6),
        -1,
        5e8,
        "clocks",
        "clock.low",
        2.0,
    ),
    Watched(
        "gpu",
        "gpu.power_watts",
        "W",
        Scale("identity", 14.0),
        -1,
        100.0,
        "clocks",
        "straggler.fail_slow",
        1.0,
    ),
    Watched(
        "gpu", "gpu.temp_celsius", "Cel", Scale("identity", 1.0), 1, 75.0, "clocks", "throttle.thermal", 1.0
    ),
    Watched(
        "gpu",
        "gpu.tensor_active_ratio",
        "1",
        Scale("identity", 0.02),
        -1,
        0.1,
        "clocks",
        "straggler.fail_slow",
        0.5,
    ),
    Watched(
        "nic", "nic.port.rx_bytes_total", "By/s", Scale("log1p", 0.03), -1, 1e8, "nic", "link.nic_slow", 1.5
    ),
    Watched(
        "nic", "nic.port.tx_bytes_total", "By/s", Scale("log1p", 0.03), -1, 1e8, "nic", "link.nic_slow", 1.5
    ),
    Watched(
        "host",
        "host.pressure.cpu_some_ratio",
        "1",
        Scale("identity", 0.05),
        1,
        0.2,
        "host",
        "host.cpu_contention",
        1.0,
    ),
    Watched(
        "host",
        "host.cpu.steal_ratio",
        "1",
        Scale("identity", 0.02),
        1,
        0.05,
        "host",
        "host.cpu_contention",
        1.0,
    ),
)

Series = tuple[int, str]
"""Index into ``WATCHED`` and the instance."""


@dataclass(slots=True)
class _Raised:
    change: Change
    claim: Claim
    last_emitted: float
    better_since: float | None = None


class LevelChanges:
    """The change-point bank of one node and the suspicions its changes lead to."""

    def __init__(self, config: ChangeConfig | None = None) -> None:
        self._config = config or ChangeConfig()
        self._series: tuple[Series, ...] = ()
        self._bank: ChangeDetectorBank | None = None
        self._waiting: dict[Series, tuple[float, Change]] = {}
        self._raised: dict[Series, _Raised] = {}

    def update(self, ts: float, values: Mapping[Series, float], place: Place) -> list[Suspicion]:
        """Take the current values (raw units, NaN = not read); return what the changes give rise to."""
        if not set(values).issubset(self._series):
            self._watch(tuple(sorted(values)))
        if self._bank is None:
            return []
        row: FloatArray = np.array([values.get(s, math.nan) for s in self._series])
        for change in self._bank.update(ts, row):
            if change.significant:
                self._note(self._series[change.series], change)
        return [*self._judge_waiting(ts, place), *self._follow(ts, values)]

    def reset(self) -> None:
        """A planned change: learn every level anew, and forget what was under way."""
        if self._bank is not None:
            self._bank.reset()
        self._waiting.clear()
        self._raised.clear()

    def _watch(self, series: tuple[Series, ...]) -> None:
        # A new device means new siblings: the whole node learns again rather than mix two pasts.
        self._series = series
        self._bank = ChangeDetectorBank([WATCHED[i].scale for i, _ in series], config=self._config)
        self._waiting.clear()
        self._raised.clear()

    def _note(self, series: Series, change: Change) -> None:
        watched = WATCHED[series[0]]
        worse = change.level_before if watched.bad < 0 else change.level_after
        if change.sign == watched.bad and worse >= watched.from_level and series not in self._raised:
            self._waiting.setdefault(series, (change.detected_at + HOLD_SECONDS, change))

    def _judge_waiting(self, ts: float, place: Place) -> list[Suspicion]:
        found = []
        for series, (due, change) in list(self._waiting.items()):
            if ts < due:
                continue
            self._waiting[series] = (ts + HOLD_SECONDS, change)
            if self._stands_out(series, change):
                claim = _claim(series, change, place)
                self._raised[series] = _Raised(change, claim, ts)
                found.append(_suspicion(claim, change, "raise", ts))
            if series in self._raised or ts - change.detected_at >= PATIENCE_SECONDS:
                del self._waiting[series]
        return found

    def _stands_out(self, series: Series, change: Change) -> bool:
        watched = WATCHED[series[0]]
        if watched.owner == "host":
            return True
        siblings = [i for i, s in enumerate(self._series) if s[0] == series[0] and s != series]
        if len(siblings) < MIN_SIBLINGS or self._bank is None:
            return False
        moved = self._bank.contrast(self._series.index(series), siblings, change.onset)
        least = MIN_FLOORS * watched.scale.floor
        return (
            moved is not None
            and min(watched.bad * moved.shift / least, watched.bad * moved.sigmas / MIN_SIGMAS) >= 1.0
        )

    def _follow(self, ts: float, values: Mapping[Series, float]) -> list[Suspicion]:
        found = []
        for series, raised in list(self._raised.items()):
            value = values.get(series, math.nan)
            change = raised.change
            half_way = (change.level_before + change.level_after) / 2
            if (value - half_way) * change.sign >= 0:
                raised.better_since = None
            elif not math.isnan(value):
                raised.better_since = ts if raised.better_since is None else raised.better_since
            if raised.better_since is not None and ts - raised.better_since >= HOLD_SECONDS:
                del self._raised[series]
                found.append(_suspicion(raised.claim, change, "clear", ts))
            elif ts - raised.last_emitted >= REFRESH_SECONDS and not math.isnan(value):
                raised.last_emitted = ts
                found.append(_suspicion(raised.claim, change, "update", ts))
        return found


def watchable(owner: Owner) -> Sequence[tuple[int, str]]:
    """Return the index into ``WATCHED`` and the metric of what is watched on GPUs, NICs or the host."""
    return tuple((i, w.metric) for i, w in enumerate(WATCHED) if w.owner == owner)


def _claim(series: Series, change: Change, place: Place) -> Claim:
    watched = WATCHED[series[0]]
    evidence = Evidence(
        metric=watched.metric,
        unit=watched.unit,
        detector=f"bocpd.{change.source}",
        value=change.level_after,
        baseline=Baseline(median=change.level_before, mad=0.0, n=0),
        change_at=change.onset,
        change_probability=change.probability,
        z_robust=change.sigmas,
    )
    return Claim(
        detector=f"change.{watched.metric}",
        family=watched.family,
        kind=watched.kind,
        subject=_subject(watched.owner, series[1], place),
        weight=watched.weight,
        score=max(1.0, min(10.0, abs(change.sigmas) / 6.0)),
        evidence=(evidence,),
        note=f"{watched.metric} changed by {change.effect:+.1%}",
    )


def _subject(owner: Owner, instance: str, place: Place) -> Subject:
    if owner == "gpu":
        return place.gpu(instance)
    return place.nic(instance) if owner == "nic" else place.whole_node()


def _suspicion(
    claim: Claim, change: Change, state: Literal["raise", "update", "clear"], ts: float
) -> Suspicion:
    interval = (change.onset_lo, change.onset_hi)
    return claim.suspicion(state, ts=ts, onset=change.onset, interval=interval)
