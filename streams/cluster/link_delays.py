"""Suspicions about links, from delays between pairs of nodes in rounds of ten seconds."""

import itertools
from collections import Counter
from dataclasses import dataclass

import msgspec
import numpy as np

from detectors.node.link_localisation import LinkConfig, LinkVerdict, classify, localise
from slowrank.telemetry import Evidence, LinkDelay, Subject, Suspicion
from streams.open_suspicions import OpenSuspicions
from streams.suspicions import Claim

# Chosen: shorter rounds have too few probes to compare, longer ones delay a finding.
ROUND_SECONDS = 10.0
# After the end of a round, for delays that arrive late (chosen: half a round).
SETTLE_SECONDS = 5.0
# So many rounds in a row must agree (chosen: congestion of a moment passes within one; a finding comes 10 s
# later).
ROUNDS = 2

# Rounds after which a rail that is not probed any more is forgotten (chosen: ten minutes).
FORGET_ROUNDS = 60

# Limits on memory, as names come from outside: rails, delays of a rail in a round, nodes that these compare,
# hops of a path.
MAX_RAILS, MAX_DELAYS, MAX_NODES, MAX_HOPS = 256, 4096, 2048, 16

_PREFIX = "pairwise"


@dataclass(frozen=True, slots=True)
class _Delay:
    source: str
    target: str
    seconds: float
    expected: float
    via: tuple[str, ...]


_Rail = tuple[str, str, bool]
"""Cluster, NIC name and whether in shadow: ports of one rail are compared with each other."""

_Fault = tuple[str, ...]
"""What a verdict is about; equal in every round that finds the same."""


class Pairwise:
    """Collect the delays of all clusters by round, and raise what enough rounds agree on."""

    def __init__(self, config: LinkConfig | None = None) -> None:
        self._config = config or LinkConfig()
        self._rounds: dict[int, dict[_Rail, set[_Delay]]] = {}
        self._streaks: dict[_Rail, dict[_Fault, int]] = {}
        self._open: dict[_Rail, OpenSuspicions[_Fault]] = {}
        self._judged: dict[_Rail, int] = {}
        self._closed = -1

    @property
    def rails(self) -> list[_Rail]:
        """The rails on which something is being watched, in order."""
        return sorted(self._streaks)

    def update(self, delay: LinkDelay) -> None:
        """Take one delay; one whose round has been judged comes too late."""
        number = int(delay.ts // ROUND_SECONDS)
        if number <= self._closed:
            return
        rail = (delay.cluster, delay.nic or "", delay.shadow)
        rails = self._rounds.setdefault(number, {})
        known = rail in rails or rail in self._streaks
        if not (known or len(rails.keys() | self._streaks.keys()) < MAX_RAILS):
            return
        received = rails.setdefault(rail, set())
        if len(delay.via) <= MAX_HOPS and len(received) < MAX_DELAYS:
            expected = delay.expected_seconds or 0.0
            received.add(_Delay(delay.node, delay.peer, delay.seconds, expected, delay.via))

    def due(self, now: float) -> list[Suspicion]:
        """Return the suspicions from the rounds that ended a settling time before ``now`` (event time)."""
        out: list[Suspicion] = []
        for number in sorted(n for n in self._rounds if (n + 1) * ROUND_SECONDS + SETTLE_SECONDS <= now):
            self._closed = number
            at = (number + 1) * ROUND_SECONDS
            for rail, delays in sorted(self._rounds.pop(number).items()):
                if delays:
                    self._judged[rail] = number
                    # A set has another order in every process; a replay must not show it.
                    out += self._judge(rail, sorted(delays, key=_order), at)
            for rail in [r for r, last in self._judged.items() if number - last > FORGET_ROUNDS]:
                self._forget(rail)
        return out

    def _forget(self, rail: _Rail) -> None:
        del self._streaks[rail], self._open[rail], self._judged[rail]

    def _judge(self, rail: _Rail, delays: list[_Delay], at: float) -> list[Suspicion]:
        found = (
            _by_path(delays, self._config) if all(d.via for d in delays) else _by_pair(delays, self._config)
        )
        before = self._streaks.get(rail, {})
        self._streaks[rail] = {fault: before.get(fault, 0) + 1 for fault in found}
        open_ = self._open.setdefault(rail, OpenSuspicions(30.0))
        out: list[Suspicion] = []
        for fault, ratio in found.items():
            if self._streaks[rail][fault] >= ROUNDS:
                out += open_.put(fault, _about(rail, fault, ratio, at))
        for fault in open_:
            if fault not in found:
                out += open_.clear(fault, at)
        # A rail with nothing to remember takes none of the ``MAX_RAILS`` places.
        if not found:
            self._forget(rail)
        return out


def _order(d: _Delay) -> tuple[str, str, float, float, tuple[str, ...]]:
    return (d.source, d.target, d.seconds, d.expected, d.via)


def _by_pair(delays: list[_Delay], config: LinkConfig) -> dict[_Fault, float]:
    delays = _among_the_most_measured(delays)
    if not delays:
        return {}
    names = sorted({d.source for d in delays} | {d.target for d in delays})
    index = {name: i for i, name in enumerate(names)}
    ratios: dict[tuple[int, int], list[float]] = {}
    for d, ratio in zip(delays, _ratios(delays), strict=True):
        ratios.setdefault((index[d.source], index[d.target]), []).append(ratio)
    matrix = np.full((len(names), len(names)), np.nan)
    for cell, values in ratios.items():
        matrix[cell] = np.median(values)
    return {_words(v, names): v.ratio for v in classify(matrix, config) if v.pattern != "congestion"}


def _among_the_most_measured(delays: list[_Delay]) -> list[_Delay]:
    """Return the delays between the nodes with most of them: the matrix grows with the nodes squared."""
    ends = Counter(end for d in delays for end in (d.source, d.target))
    if len(ends) <= MAX_NODES:
        return delays
    kept = set(sorted(ends, key=lambda end: (-ends[end], end))[:MAX_NODES])
    return [d for d in delays if d.source in kept and d.target in kept]


def _by_path(delays: list[_Delay], config: LinkConfig) -> dict[_Fault, float]:
    number: dict[tuple[str, str], int] = {}
    paths = []
    for d in delays:
        hops = (d.source, *d.via, d.target)
        pairs = [(min(pair), max(pair)) for pair in itertools.pairwise(hops)]
        paths.append([number.setdefault(pair, len(number)) for pair in pairs])
    solved = localise(paths, np.minimum(1.0, 1.0 / _ratios(delays)), len(number), config)
    links, ends = list(number), {d.source for d in delays} | {d.target for d in delays}
    found: dict[_Fault, float] = {}
    for alike in solved.bad(config):
        ratio = float(1.0 / max(solved.success[alike[0]], 1e-3))
        found[_link_words([links[link] for link in alike], ends)] = ratio
    return found


def _link_words(links: list[tuple[str, str]], ends: set[str]) -> _Fault:
    """Name a node's own link by the node, any other by its two ends."""
    nodes = [end for end in links[0] if end in ends]
    if len(links) == 1 and len(nodes) == 1:
        return ("port", nodes[0])
    return ("link", *itertools.chain.from_iterable(links))


def _ratios(delays: list[_Delay]) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Return each delay over its expected one, or over the median of all where none is given."""
    usual = float(np.median([d.seconds for d in delays]))
    return np.array([d.seconds / (d.expected or usual) for d in delays])


def _words(v: LinkVerdict, names: list[str]) -> _Fault:
    ends = dict.fromkeys(end for end in (v.source, v.target) if end is not None)
    return (v.pattern, *(names[end] for end in ends))


def _about(rail: _Rail, fault: _Fault, ratio: float, at: float) -> Suspicion:
    cluster, nic, shadow = rail
    if fault[0] in ("path", "link"):
        subject = Subject(type="link", cluster=cluster, nic=nic or None, port=fault[1], peer_port=fault[2])
    else:
        subject = Subject(type="nic", cluster=cluster, node=fault[1], nic=nic or None)
    evidence = Evidence(
        metric="link.delay_ratio",
        unit="1",
        detector=_PREFIX,
        value=round(ratio, 4),
        note=f"{fault[0]}: {', '.join(fault[1:])}",
    )
    # One pair may merely be unlucky in its route, and of links in a row any may be the slow one.
    sure = fault[0] != "path" and len(fault) <= 3
    claim = Claim(
        detector=_PREFIX,
        catalogue_id="pairwise",
        family="nic",
        kind="link.nic_slow",
        subject=subject,
        weight=4.0 if sure else 2.0,
        overwhelming=sure,
        evidence=(evidence,),
    )
    # The beginning of the first of the rounds that agree.
    onset = at - ROUNDS * ROUND_SECONDS
    suspicion = claim.suspicion("raise", ts=at, onset=onset, interval=(onset, at))
    return msgspec.structs.replace(suspicion, slowdown_ratio=round(ratio, 4), shadow=shadow)
