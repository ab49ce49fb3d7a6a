"""Nodes whose link is slow for TCP, by the round trips of what they send and of what they receive."""

from collections.abc import Mapping

import numpy as np

from slowrank.telemetry import Evidence
from slowrank.telemetry.schema import SAMPLE_SCHEMAS, Owner
from streams.columns import FloatArray, Mask
from streams.debounce import ConditionBank, Debounce, Key
from streams.node.batch import Batch, Shape
from streams.node.conditions import observe
from streams.node.config import NodeConfig
from streams.node.detector import Found, Increases, Origin
from streams.suspicions import Claim, Location

SENT, RECEIVED = "host.tcp.sent_round_trip_seconds", "host.tcp.received_round_trip_seconds"
_GAUGES = (SENT, RECEIVED)

# Where Pingmesh alarms (Guo et al., SIGCOMM 2015, section 4.3); within a data centre its 99th percentile is
# around a millisecond.
LONG_SECONDS = 0.005

# Times the usual round trip. Chosen: sites that are far apart have long ones for good.
APART = 2.0

# Least share of the sent that the received is. A link's round trip is the same both ways. The kernel takes
# what the peer of a slow node receives for longer too, as data comes once a turn of the ring; but a queue in
# front of the slow link holds several turns. Measured in a ring of eight at 4 Mbit/s: 0.75 at the slow node,
# 0.13 at the one that sends to it. Chosen between the two.
ALIKE = 1 / 3

# Time constants of recent and usual means, and how much has to be learned. Chosen: recent ones last over the
# pause of a checkpoint, and twenty seconds are the first steps of a job.
WINDOW_SECONDS, USUAL_SECONDS, LEARN_SECONDS = 10.0, 300.0, 20.0

# Most seconds that one value stands for. Chosen: exporters of nodes with thousands of connections read them
# every few seconds.
_GAP_SECONDS = 5.0

# Of a full window. Chosen: a second of traffic in a step of twenty; without any, half a minute ends a mean.
_LEAST_SECONDS = 0.5

# Chosen: as long as for lost segments, three windows; an incast is shorter.
_DEBOUNCE = Debounce(hold=30.0)
_SLOW: Key = (0, "")


class TcpDelay:
    """Raises nodes in a job whose TCP round trips are long both for what they send and what they receive.

    In a ring W -> X -> Y whose link of X is slow, W waits long for acknowledgements of X and Y for its data;
    X alone has both. A direction is slow when the mean of its round trips over 10 s is at least 5 ms and
    twice its usual mean in this job, which is learned while it is not slow. Not found are links that are slow
    when the job begins or become so little by little, and those of nodes that also talk fast to a node
    beyond no slow link, as two nodes on one switch of which only the uplink is slow. Where nodes send to and
    receive from one peer, as in a job of two nodes, both ends show as much and both are raised. A kernel may
    take the pauses of a sender for round trips of what is received: where they are usual, a link is missed.
    """

    counters: Mapping[Owner, tuple[str, ...]] = {}

    def __init__(self, shape: Shape, nodes: int, config: NodeConfig) -> None:
        self._known = set(_GAUGES) <= set(SAMPLE_SCHEMAS[shape.schema].host.names)
        self._at = np.full(nodes, np.nan)
        self._read_at = np.full((nodes, len(_GAUGES)), np.nan)
        # [value x seconds or seconds, node, direction], fading.
        self._recent = np.zeros((2, nodes, len(_GAUGES)))
        self._usual = np.zeros((2, nodes, len(_GAUGES)))
        self._learned = np.zeros((nodes, len(_GAUGES)))
        self._conditions = ConditionBank(nodes)

    def update(self, batch: Batch, increases: Increases) -> Found:
        """Add the round trips of the batch; return the nodes whose link is slow."""
        for k in batch.left_jobs:
            self.restart(int(batch.index[k]))
        recent, slow = self._add(batch) if self._known else _nothing(len(batch))
        alike = recent[:, 1] >= ALIKE * recent[:, 0]
        active = {(int(k), _SLOW) for k in np.flatnonzero(slow.all(axis=1) & alike & batch.in_job)}

        def claim(k: int, _key: Key) -> Claim:
            return _claim(batch.location(k), recent[k].tolist())

        return observe(self._conditions, batch, active, debounce=lambda _: _DEBOUNCE, claim=claim)

    def restart(self, node: int) -> None:
        """Learn the usual round trips anew."""
        self._at[node] = self._read_at[node] = np.nan
        self._recent[:, node] = self._usual[:, node] = self._learned[node] = 0.0

    def forget(self, node: int) -> None:
        """Drop the condition of a node."""
        self._conditions.forget(node)

    def carry(self, node: int, source: "TcpDelay", origin: Origin) -> None:
        """Take over what was learned, and the condition."""
        self._at[node], self._read_at[node] = source._at[origin.row], source._read_at[origin.row]
        self._recent[:, node] = source._recent[:, origin.row]
        self._usual[:, node] = source._usual[:, origin.row]
        self._learned[node] = source._learned[origin.row]
        self._conditions.carry(node, source._conditions, origin.row)

    def _add(self, batch: Batch) -> tuple[FloatArray, Mask]:
        """Return the recent means [n, direction], and which are slow."""
        rows = batch.rows
        values = np.concatenate([batch.host[name] for name in _GAUGES], axis=1).astype(float)
        read, at = np.isfinite(values), batch.ts[:, None]
        # The usual case where training is not over TCP: all of the following would change nothing.
        if not read.any() and not self._recent[1, rows].any():
            self._at[rows] = batch.ts
            return _nothing(len(batch))
        passed = np.maximum(np.nan_to_num(at - self._at[rows][:, None]), 0.0)
        since = np.clip(np.nan_to_num(at - self._read_at[rows]), 0.0, _GAP_SECONDS)
        self._at[rows] = batch.ts
        self._read_at[rows] = np.where(read, at, self._read_at[rows])
        seconds = np.where(read, since, 0.0)
        amounts = np.stack([np.nan_to_num(values) * seconds, seconds])
        recent = self._recent[:, rows] = self._recent[:, rows] * np.exp(-passed / WINDOW_SECONDS) + amounts
        usual, learned = self._usual[:, rows], self._learned[rows]
        known, normal = learned >= LEARN_SECONDS, APART * _mean(usual, least=0.0)
        # By single values: a mean comes to be long only after some of a fault have been learned.
        calm = seconds * ~(known & _long(values, normal))
        self._usual[:, rows] = usual * np.exp(-calm / USUAL_SECONDS) + amounts * (calm > 0.0)
        self._learned[rows] = learned + calm
        means = _mean(recent, least=_LEAST_SECONDS)
        return means, known & _long(means, normal)


def _long(trips: FloatArray, normal: FloatArray) -> Mask:
    return np.asarray((trips >= LONG_SECONDS) & (trips >= normal))


def _mean(sums: FloatArray, *, least: float) -> FloatArray:
    """Return the means of decayed sums; 0 where less than ``least`` seconds are left of them."""
    return np.asarray(np.where(sums[1] >= least, sums[0] / np.maximum(sums[1], 1e-9), 0.0))


def _nothing(nodes: int) -> tuple[FloatArray, Mask]:
    return np.zeros((nodes, len(_GAUGES))), np.zeros((nodes, len(_GAUGES)), np.bool_)


def _claim(location: Location, means: list[float]) -> Claim:
    return Claim(
        detector="tcp.delay",
        catalogue_id="tcp_delay",
        family="nic",
        kind="link.tcp_delay",
        subject=location.whole_node(),
        weight=3.0,
        overwhelming=True,
        evidence=tuple(
            Evidence(
                metric=metric,
                unit="s",
                detector="tcp.delay",
                value=round(mean, 4),
                note="mean of 10 s, at least 5 ms and twice the usual in this job, as is the other direction",
            )
            for metric, mean in zip(_GAUGES, means, strict=True)
        ),
        severity="warning",
        note="TCP round trips to and from this node are long",
    )
