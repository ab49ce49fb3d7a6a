"""Which nodes stopped sending, one by one: from the last record of each, at whole seconds of event time.

Whether many that stop together are a rack, a switch or the telemetry itself is decided where all nodes of a
cluster are known (``streams.cluster.incidents``); so each is passed on early, before it is a finding.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Literal

from alerts.kinds import UNHEARD_KIND
from slowrank.telemetry import Suspicion
from streams.deadlines import NextDeadline
from streams.silent_nodes import SilenceConfig
from streams.suspicions import Claim, HangClaim, Location

Kind = Literal["exporter.stale", "node.silent"]

# Reports in a row that must be missing. Chosen: three may be lost or late without a suspicion.
_MISSED = 4

# Gaps between records of a node that show its rate, from the third on: the longest, and of six the second
# longest, as a report may be lost. Chosen: what other systems collect comes from two or three exporters a
# node, each at its own moment.
_RECENT, _LEAST = 6, 3

# Seconds that each of the first records of a node may take. Chosen: the longest interval that is usual for
# metrics of other systems, five minutes (those of clouds), and a quarter of it for what comes late.
_FIRST_GAP = 375.0

_UNHEARD, _NO_RECORD = "silence.unheard", "warning: no record from this node"

# Seconds by which a deadline is taken early: sums and differences of Unix times are not exact.
_ROUNDING = 1e-3


@dataclass(slots=True)
class _Node:
    """When a node last sent a record, the gaps before its ``recent`` ones, and which suspicions are open.

    ``until`` is the event time of the last suspicion about its silence; ``left``: no longer expected;
    ``heard_from``: before that time its records may have been lost here (``Liveness.resume``).
    """

    location: Location
    last: float
    recent: tuple[float, ...] = ()
    raised: set[Kind] = field(default_factory=set)
    certain: bool = False
    unheard: bool = False
    left: bool = False
    until: float = -math.inf
    heard_from: float = -math.inf

    @property
    def since(self) -> float:
        """Since when its silence counts."""
        return max(self.last, self.heard_from)


class Liveness:
    """The nodes of one key group and when each last sent a record.

    Its output for a node depends on that node's records alone, and so not on the partitions.
    """

    def __init__(self, config: SilenceConfig | None = None) -> None:
        self._config = config or SilenceConfig()
        self._nodes: dict[tuple[str, str], _Node] = {}
        self._due = NextDeadline()
        self._soonest = min(asdict(self._config).values()) - _ROUNDING
        self._latest = min(self._config.certain, self._config.expected) - _ROUNDING
        self._second = -math.inf

    @property
    def known(self) -> int:
        """How many nodes are expected to go on sending."""
        return sum(not node.left for node in self._nodes.values())

    def update(self, location: Location, ts: float) -> list[Suspicion]:
        """Process a node's record of event time ``ts``; return the suspicions that it ends."""
        node = self._nodes.get((location.cluster, location.node))
        if node is None:
            self._add(location, ts)
            return []
        # The result must not depend on whether a tick came between two records: check the gap here as well.
        since = node.since
        silence = ts - since
        found = self._missed_at(node, ts) if silence > self._config.unheard else []
        if silence > self._config.remembered:
            self._add(location, ts)
            return found
        # A spool that drains brings a record older than the suspicion; the clear must not be dated before it.
        ends = max(ts, node.until)
        if node.unheard:
            found.append(_unheard(node, "clear", ends))
            found += [] if node.left else _to_its_job(node, "clear", ends)
        if node.raised:
            claims = (_claim(node, kind) for kind in sorted(node.raised))
            found += [claim.suspicion("clear", ts=ends, onset=since) for claim in claims]
            node.raised = set()
        if silence > self._config.expected:
            self._add(location, ts)
            return found
        node.certain = node.unheard = node.left = False
        if node.last >= node.heard_from:
            node.recent = (*node.recent[1 - _RECENT :], abs(ts - node.last))
        node.location, node.last = location, max(node.last, ts)
        # A lower bound of its deadline, cheaper than the deadline itself, which is hardly ever reached.
        wait = max(self._soonest, min(self._missed(node) - _ROUNDING, self._latest))
        self._due.note(node.since + wait)
        return found

    def update_late(self, location: Location, ts: float) -> list[Suspicion]:
        """Process a record that the node's own clock dates before its last one.

        It counts as a sign of life only where ``ts``, in the cluster's time, is younger than the last: a
        clock was set back. Otherwise the record arrived late.
        """
        node = self._nodes.get((location.cluster, location.node))
        return self.update(location, ts) if node is not None and ts > node.last else []

    def resume(self, event_time: float) -> None:
        """Count the silence of nodes from ``event_time`` on: what they sent before may have been lost here.

        That of a node whose silence was reported before goes on.
        """
        for node in self._nodes.values():
            if not node.raised:
                node.heard_from = max(node.heard_from, event_time)

    def suspected_until(self, location: Location) -> float:
        """Return the event time of the last suspicion about a silence of a node; -inf without one."""
        node = self._nodes.get((location.cluster, location.node))
        return -math.inf if node is None else node.until

    def tick(self, event_time: float) -> list[Suspicion]:
        """Check all nodes at the whole second of ``event_time``, once for each second."""
        second = math.floor(event_time)
        if second <= self._second:
            return []
        self._second = second
        # In most seconds no node is overdue, and there may be thousands of nodes.
        if not self._due.reached(second):
            return []
        found = [s for _, node in sorted(self._nodes.items()) for s in self._missed_at(node, float(second))]
        self._forget_departed(second)
        self._due.counted(map(self._deadline, self._nodes.values()))
        return found

    def _add(self, location: Location, ts: float) -> None:
        node = self._nodes[location.cluster, location.node] = _Node(location, ts)
        self._due.note(self._deadline(node))

    def _missed(self, node: _Node) -> float:
        """Return the seconds in which a node misses ``_MISSED`` reports at its own rate.

        The rate is unknown after its first records.
        """
        if len(node.recent) < _LEAST:
            return max(self._config.silent, _FIRST_GAP)
        return _MISSED * sorted(node.recent)[-1 if len(node.recent) < _RECENT else -2]

    def _deadline(self, node: _Node) -> float:
        """Return an event time before which nothing is due about a node, unless it sends again."""
        config, missed = self._config, self._missed(node)
        if node.left:
            return node.last + config.remembered
        stale = max(config.stale, missed)
        after = min(
            config.expected,
            math.inf if node.certain else max(config.certain, missed),
            math.inf if "node.silent" in node.raised else max(config.silent, 2 * missed),
            math.inf if "exporter.stale" in node.raised else stale,
            math.inf if node.unheard else min(stale, max(config.unheard, missed)),
        )
        return node.since + after - _ROUNDING

    def _missed_at(self, node: _Node, now: float) -> list[Suspicion]:
        found = list(self._overdue(node, now))
        node.until = max([node.until, *(s.ts for s in found)])
        return found

    def _overdue(self, node: _Node, now: float) -> Iterator[Suspicion]:
        config, since = self._config, node.since
        silence = now - since
        missed = self._missed(node)
        stale = max(config.stale, missed)
        few = min(stale, max(config.unheard, missed))
        if silence >= few and not node.unheard:
            node.unheard = True
            yield _unheard(node, "raise", since + few)
            yield from _to_its_job(node, "raise", since + few)
        deadlines: tuple[tuple[Kind, float], ...] = (
            ("exporter.stale", stale),
            ("node.silent", max(config.silent, 2 * missed)),
        )
        for kind, after in deadlines:
            if after <= min(silence, config.expected) and kind not in node.raised:
                node.raised.add(kind)
                yield _claim(node, kind).suspicion("raise", ts=since + after, onset=since)
        # At its own rate: the next report may not be due yet.
        certain = max(config.certain, missed)
        if certain <= min(silence, config.expected) and not node.certain:
            node.certain = True
            claim = _claim(node, "exporter.stale", certain=True)
            yield claim.suspicion("update", ts=since + certain, onset=since)
        if silence > config.expected and not node.left:
            # It no longer votes on a hang of its job, which may run elsewhere under the same name.
            node.left = True
            yield from _to_its_job(node, "clear", since + config.expected)

    def _forget_departed(self, now: float) -> None:
        gone = [key for key, node in self._nodes.items() if now - node.last > self._config.remembered]
        for key in gone:
            del self._nodes[key]


def _claim(node: _Node, kind: Kind, *, certain: bool = False) -> Claim:
    return Claim(
        detector=f"silence.{kind}",
        catalogue_id="silence",
        family="silence",
        kind=kind,
        subject=node.location.whole_node(),
        weight=3.0 if certain else 1.0,
        overwhelming=certain,
        note=_NO_RECORD,
    )


def _unheard(node: _Node, state: Literal["raise", "clear"], ts: float) -> Suspicion:
    """Return the suspicion that a node is unheard of, raised or cleared.

    Stamped with whole seconds: thousands of nodes that stop together are then processed in a few steps.
    """
    claim = Claim(
        detector=_UNHEARD,
        catalogue_id="silence",
        family="silence",
        kind=UNHEARD_KIND,
        subject=node.location.whole_node(),
        weight=1.0,
        note=_NO_RECORD,
    )
    return claim.suspicion(state, ts=float(math.ceil(ts)), onset=node.since)


def _to_its_job(node: _Node, state: Literal["raise", "clear"], ts: float) -> list[Suspicion]:
    """Return the vote on a hang of the node's job, if it has one: its work cannot be seen, or can again."""
    if node.location.job_id is None:
        return []
    claim = HangClaim(
        signal="no_telemetry",
        detector=_UNHEARD,
        family="telemetry",
        subject=node.location.whole_node(),
        weight=0.0,
        note=_NO_RECORD,
    )
    return [claim.suspicion(state, ts=float(math.ceil(ts)), onset=node.since)]
