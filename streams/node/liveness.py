"""Which nodes stopped sending, one by one: from the last record of each, at whole seconds of event time.

Whether many that fall silent together are a rack, a switch or the telemetry itself is judged where all nodes
of a cluster are known (``incidents``); so each is passed on early, before it is a finding.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Literal

from alerts.kinds import UNHEARD_KIND
from slowrank.telemetry import Suspicion
from streams.deadlines import NextDeadline
from streams.silence import SilenceConfig
from streams.suspicions import Claim, HangClaim, Place

Kind = Literal["exporter.stale", "node.silent"]

_MISSED = 4

_UNHEARD, _NO_RECORD = "silence.unheard", "warning: no record from this node"

_ROUNDING = 1e-3
"""Seconds by which a deadline is taken early: sums and differences of Unix times are not exact."""


@dataclass(slots=True)
class _Heard:
    """When a node was ``last`` heard, the ``gap`` before that, and what has been said of its silence.

    ``until`` is the event time of the last suspicion about that silence; ``left``: it is expected no more.
    """

    place: Place
    last: float
    gap: float = math.inf
    raised: set[Kind] = field(default_factory=set)
    certain: bool = False
    unheard: bool = False
    left: bool = False
    until: float = -math.inf


class Silence:
    """The nodes of one key group and when each was last heard.

    Its output for a node depends on that node's records alone, so that partitions change nothing.
    """

    def __init__(self, config: SilenceConfig | None = None) -> None:
        self._config = config or SilenceConfig()
        self._heard: dict[tuple[str, str], _Heard] = {}
        self._due = NextDeadline()
        self._soonest = min(asdict(self._config).values()) - _ROUNDING
        self._latest = min(self._config.certain, self._config.expected) - _ROUNDING
        self._second = -math.inf

    @property
    def known(self) -> int:
        """How many nodes are expected to go on sending."""
        return sum(not held.left for held in self._heard.values())

    def heard(self, place: Place, ts: float) -> list[Suspicion]:
        """Take that a node sent a record of event time ``ts``; return what of its silence that ends."""
        held = self._heard.get((place.cluster, place.node))
        if held is None:
            self._meet(place, ts)
            return []
        # Whether a tick came between two records must not matter: what the gap says is said all the same.
        silence = ts - held.last
        found = self._missed_at(held, ts) if silence > self._config.unheard else []
        if silence > self._config.remembered:
            self._meet(place, ts)
            return found
        # A spool that drains brings a record of before the silence was noticed: it ends what was said all the
        # same, and an end that is dated before its beginning would be none.
        ends = max(ts, held.until)
        if held.unheard:
            found.append(_unheard(held, "clear", ends))
            found += [] if held.left else _to_its_job(held, "clear", ends)
        if held.raised:
            claims = (_claim(held, kind) for kind in sorted(held.raised))
            found += [claim.suspicion("clear", ts=ends, onset=held.last) for claim in claims]
            held.raised = set()
        if silence > self._config.expected:
            self._meet(place, ts)
            return found
        held.certain = held.unheard = held.left = False
        held.until = -math.inf
        held.place, held.last, held.gap = place, max(held.last, ts), abs(ts - held.last)
        # Not its deadline, which is dearer to find and hardly ever reached; no later than it.
        wait = max(self._soonest, min(_MISSED * held.gap - _ROUNDING, self._latest))
        self._due.note(held.last + wait)
        return found

    def heard_out_of_turn(self, place: Place, ts: float) -> list[Suspicion]:
        """Take that a node sent a record that its own clock dates before its last one.

        A clock that was set back does so for as long as it was ahead; what comes late is older than what was
        heard, and says nothing of now.
        """
        held = self._heard.get((place.cluster, place.node))
        return self.heard(place, ts) if held is not None and ts > held.last else []

    def tick(self, event_time: float) -> list[Suspicion]:
        """Judge all nodes at the whole second of ``event_time``; a second is judged once."""
        second = math.floor(event_time)
        if second <= self._second:
            return []
        self._second = second
        # Most seconds nobody is overdue, and there may be thousands of nodes.
        if not self._due.reached(second):
            return []
        found = [s for _, held in sorted(self._heard.items()) for s in self._missed_at(held, float(second))]
        self._forget_the_departed(second)
        self._due.counted(map(self._deadline, self._heard.values()))
        return found

    def _meet(self, place: Place, ts: float) -> None:
        held = self._heard[place.cluster, place.node] = _Heard(place, ts)
        self._due.note(self._deadline(held))

    def _missed(self, held: _Heard) -> float:
        """Return how long a node takes to miss four reports.

        One that sends every ten seconds is not silent after ten: what counts is how many it missed. How
        often one sends is not known from its first record, and the second may be lost.
        """
        return _MISSED * held.gap if math.isfinite(held.gap) else self._config.silent

    def _deadline(self, held: _Heard) -> float:
        """Return an event time before which a node needs no message, unless it sends again."""
        config, missed = self._config, self._missed(held)
        if held.left:
            return held.last + config.remembered
        stale = max(config.stale, missed)
        after = min(
            config.expected,
            math.inf if held.certain else config.certain,
            math.inf if "node.silent" in held.raised else max(config.silent, 2 * missed),
            math.inf if "exporter.stale" in held.raised else stale,
            math.inf if held.unheard else min(stale, max(config.unheard, missed)),
        )
        return held.last + after - _ROUNDING

    def _missed_at(self, held: _Heard, now: float) -> list[Suspicion]:
        found = list(self._overdue(held, now))
        held.until = max([held.until, *(s.ts for s in found)])
        return found

    def _overdue(self, held: _Heard, now: float) -> Iterator[Suspicion]:
        config, silence = self._config, now - held.last
        missed = self._missed(held)
        stale = max(config.stale, missed)
        few = min(stale, max(config.unheard, missed))
        if silence >= few and not held.unheard:
            held.unheard = True
            yield _unheard(held, "raise", held.last + few)
            yield from _to_its_job(held, "raise", held.last + few)
        deadlines: tuple[tuple[Kind, float], ...] = (
            ("exporter.stale", stale),
            ("node.silent", max(config.silent, 2 * missed)),
        )
        for kind, after in deadlines:
            if after <= min(silence, config.expected) and kind not in held.raised:
                held.raised.add(kind)
                yield _claim(held, kind).suspicion("raise", ts=held.last + after, onset=held.last)
        if silence >= config.certain and not held.certain:
            held.certain = True
            claim = _claim(held, "exporter.stale", certain=True)
            yield claim.suspicion("update", ts=held.last + config.certain, onset=held.last)
        if silence > config.expected and not held.left:
            # Whether its job hangs is asked of it no more: it may run elsewhere, under the same name.
            held.left = True
            yield from _to_its_job(held, "clear", held.last + config.expected)

    def _forget_the_departed(self, now: float) -> None:
        gone = [key for key, held in self._heard.items() if now - held.last > self._config.remembered]
        for key in gone:
            del self._heard[key]


def _claim(held: _Heard, kind: Kind, *, certain: bool = False) -> Claim:
    return Claim(
        detector=f"silence.{kind}",
        catalogue_id="silence",
        family="silence",
        kind=kind,
        subject=held.place.whole_node(),
        weight=3.0 if certain else 1.0,
        overwhelming=certain,
        note=_NO_RECORD,
    )


def _unheard(held: _Heard, state: Literal["raise", "clear"], ts: float) -> Suspicion:
    """Write that a node is unheard of, or back.

    Stamped with whole seconds: thousands of nodes that fall silent together are then weighed in a few steps.
    """
    claim = Claim(
        detector=_UNHEARD,
        catalogue_id="silence",
        family="silence",
        kind=UNHEARD_KIND,
        subject=held.place.whole_node(),
        weight=1.0,
        note=_NO_RECORD,
    )
    return claim.suspicion(state, ts=float(math.ceil(ts)), onset=held.last)


def _to_its_job(held: _Heard, state: Literal["raise", "clear"], ts: float) -> list[Suspicion]:
    """Write to the job of a node, if it has one, that it cannot be asked whether it works, or can again."""
    if held.place.job_id is None:
        return []
    claim = HangClaim(
        signal="no_telemetry",
        detector=_UNHEARD,
        family="telemetry",
        subject=held.place.whole_node(),
        weight=0.0,
        note=_NO_RECORD,
    )
    return [claim.suspicion(state, ts=float(math.ceil(ts)), onset=held.last)]
