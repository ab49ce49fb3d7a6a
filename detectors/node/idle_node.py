"""Nodes that do not work although their job is still there: the second condition of a hang.

A hang needs two independent signs: no progress of the steps, and idle nodes. This module tests the second,
from NIC traffic, GPU power, utilisation, tensor activity and memory.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detectors.node.running_median import Floats, Rows, RunningMedian
from detectors.node.waiting import Signs, WaitingBank
from detectors.robust import nan_median

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleNodeConfig:
    """Shares of what is usual, levels (ratios 0 to 1) and holds in seconds of event time.

    ``least_bytes`` (bytes/s): a node that usually sends less is not judged by its traffic.
    ``idle`` and ``empty`` are the utilisation and the share of memory in use at which a job has gone.
    """

    bytes_share: float = 0.01
    least_bytes: float = 10e6
    busy: float = 0.95
    # Waiting in a collective spins at full utilisation and 30 to 50 % of the power.
    power_share: float = 0.6
    # A job that waits for a third of its time draws less on average, so that spinning stands out less. Where
    # no bytes go either, that is evidence, though not certainty.
    power_share_both: float = 0.7
    # Where tensor activity is not read, serving requests looks like spinning at half of the power of training
    # and more: what is to count without any steps has to be clearer than that (chosen).
    power_share_alone: float = 0.5
    tensor: float = 0.001
    # An exporter that cannot read tensor activity may write zero: usual zeros are no measurement.
    tensor_used: float = 0.05
    gpu_share: float = 0.9
    idle: float = 0.05
    empty: float = 0.1
    hold_both: float = 5.0
    hold_lasting: float = 50.0
    hold_one: float = 30.0
    clear: float = 10.0
    gap: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReading:
    """One sample of n nodes; NaN = not read.

    ``ts`` [n] are event times in seconds, ``nic`` [n] bytes a second over all ports, both directions. The
    others are [n, gpus]: ``power`` in watts, ``utilization``, ``tensor`` activity and ``memory`` in use as
    shares of 1. GPUs that a node does not have are NaN.
    """

    ts: Floats
    nic: Floats
    power: Floats
    utilization: Floats
    tensor: Floats
    memory: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleResult:
    """State of n nodes after a sample.

    ``not_working`` [n]: B2 holds now; ``held`` [n]: B1 or B2 since long enough to count; ``both`` [n]: both
    together, now or until lately, B2 by ``power_share_both``; ``lasting`` [n] is B1 and B2 for longer than a
    job that waits for its storage does; ``since`` [n] is when either began, NaN where neither holds.
    ``ended`` [n]: nothing of a job is left on its GPUs. ``spinning`` [n, gpus] are the GPUs at work on
    nothing: where most of a job's spin, the one that does not is the one they wait for. ``idle`` [n] is where
    no bytes go and GPUs that do not spin stand idle: a stall of the data looks the same for a while, so that
    it names nodes in a hang and proves none. ``stuck_since`` and ``resting_since`` as in ``waiting.Waits``.
    """

    not_working: Bools
    held: Bools
    both: Bools
    lasting: Bools
    idle: Bools
    since: Floats
    ended: Bools
    spinning: Bools
    stuck_since: Floats
    resting_since: Floats


class IdleNodeBank:
    """Idle-node test for many nodes of up to ``gpus`` GPUs each, every node at its own event time.

    With b the bytes per second of all NICs, P_i the power and u_i the utilisation of GPU i, t_i its tensor
    activity, and a bar for the usual value (median of the last 32 means of 10 s, ``RunningMedian``):

        B1  b < 0.01 · b̄, where b̄ ≥ 10 MB/s
        B2  at least 90 % of the GPUs spin (u_i ≥ 0.95 and P_i < 0.6 · P̄_i), or
            at least 90 % have idle tensor cores (t_i ≤ 0.001, where t̄_i ≥ 0.05)

    Processes that wait in a collective busy-loop: full utilisation at 30 to 50 % of the power. B1 and B2
    together count after 5 s, either alone after 30 s; both end after 10 s without. A node whose GPUs are idle
    and empty of a job's memory has ended its job and is not idle in it. Sources: utilisation against power,
    nebius/soperator issue 796; tensor activity ≤ 0.001, DLRover's hang rule. Shares and holds are chosen.

    A key whose input was not read stays as it was. What is usual is learnt from GPUs in use and not while a
    node is held quiet, so that neither a slow start nor a long hang becomes usual.

    >>> bank = IdleNodeBank(1, 1)
    >>> for second in range(60):
    ...     watts, sent = (250.0, 0.0) if second >= 50 else (600.0, 1e9)
    ...     one = lambda x: np.array([[x]])
    ...     quiet = bank.update(np.array([0]), NodeReading(
    ...         ts=np.array([float(second)]), nic=np.array([sent]), power=one(watts),
    ...         utilization=one(1.0), tensor=one(np.nan), memory=one(0.8)))
    >>> bool(quiet.held[0]), float(quiet.since[0])
    (True, 50.0)
    """

    def __init__(self, nodes: int, gpus: int, *, config: IdleNodeConfig | None = None) -> None:
        self.config = config or IdleNodeConfig()
        self._gpus = gpus
        # Channels: bytes of the NICs, power by GPU, tensor activity by GPU.
        self._usual = RunningMedian(nodes, 1 + 2 * gpus)
        self._last = np.full(nodes, -np.inf)
        # Rows of since: either key, both, B1 with a B2 of less contrast, no bytes and no GPU at work; of
        # calm: the first three, while not so.
        self._since, self._calm = np.full((4, nodes), np.nan), np.full((3, nodes), np.nan)
        # B1, B2, B2 of less contrast, and whether no GPU works, spinning or idle.
        self._keys = np.zeros((4, nodes), np.bool_)
        # Rows as in IdleResult: held, idle, both, lasting.
        self._held = np.zeros((4, nodes), np.bool_)
        self._waiting = WaitingBank(nodes)
        # Whether GPUs wait, by the last sample that shows it.
        self._waits = np.zeros(nodes, np.bool_)

    def update(self, nodes: Rows, reading: NodeReading) -> IdleResult:
        """Take one sample of each of the distinct ``nodes`` [n], younger than their last; return their
        states."""
        gap = reading.ts - self._last[nodes] > self.config.gap
        if gap.any():
            # Idleness before and after a gap is no evidence for the time between.
            self._since[:, nodes] = np.where(gap, np.nan, self._since[:, nodes])
        ended = self._ended(reading)
        spinning, keys = self._judge(nodes, reading)
        keys &= ~ended
        self._keys[:, nodes] = keys
        self._hold(nodes, reading.ts, ended)
        waits = self._waiting.update(nodes, reading.ts, self._signs(nodes, reading, keys, ended))
        self._learn(nodes, reading, stuck=np.isfinite(waits.stuck_since))
        self._last[nodes] = reading.ts
        # A copy: of neighbours these are views.
        held, idle, both, lasting = self._held[:, nodes].copy()
        return IdleResult(
            not_working=keys[1],
            held=held,
            idle=idle,
            both=both,
            lasting=lasting,
            since=self._since[0, nodes].copy(),
            ended=ended,
            spinning=spinning,
            stuck_since=waits.stuck_since,
            resting_since=waits.resting_since,
        )

    def shares(self, nodes: Rows, reading: NodeReading) -> Floats:
        """Return NIC bytes and the middle GPU's power as shares of what is usual, [2, n]; NaN = not known."""
        usual = self._usual.value[nodes]
        nic = reading.nic / np.where(usual[:, 0] > 0, usual[:, 0], np.nan)
        power = reading.power / np.where(
            usual[:, 1 : 1 + self._gpus] > 0, usual[:, 1 : 1 + self._gpus], np.nan
        )
        return np.stack((nic, nan_median(power, axis=1)))

    def reset(self, nodes: Rows) -> None:
        """Forget some nodes: another job runs there, or they were started anew."""
        self._usual.reset(nodes)
        self._last[nodes], self._calm[:, nodes], self._since[:, nodes] = -np.inf, np.nan, np.nan
        self._keys[:, nodes], self._held[:, nodes], self._waits[nodes] = False, False, False
        self._waiting.reset(nodes)

    def _judge(self, nodes: Rows, r: NodeReading) -> tuple[Bools, Bools]:
        """Return which GPUs spin, [n, gpus], and B1, B2, B2 of less contrast, whether no GPU works, [4, n].

        Where inputs are missing, the previous result is kept.
        """
        config, usual = self.config, self._usual.value[nodes]
        power, tensor = usual[:, 1 : 1 + self._gpus], usual[:, 1 + self._gpus :]
        low = r.power < config.power_share * power
        spins = (r.utilization >= config.busy) & low
        spins_rather = (r.utilization >= config.busy) & (r.power < config.power_share_both * power)
        rests = spins | ((r.utilization <= config.idle) & low)
        has_power = np.isfinite(r.utilization + r.power + power)
        still = (r.tensor <= config.tensor) & (tensor >= config.tensor_used)
        has_tensor = np.isfinite(r.tensor) & (tensor >= config.tensor_used)
        measured = np.stack((has_power, has_tensor)).sum(axis=2)
        by_power, by_tensor = measured > 0
        # Shares of the GPUs with the inputs: the first three signs need power, the last tensor activity.
        inputs = np.stack((has_power, has_power, has_power, has_tensor))
        showing = (np.stack((spins, spins_rather, rests, still)) & inputs).sum(axis=2)
        spin, rather, rest, stand = showing >= config.gpu_share * measured[[0, 0, 0, 1]]
        b1 = (usual[:, 0] >= config.least_bytes) & (r.nic < config.bytes_share * usual[:, 0])
        stand = by_tensor & stand
        b2, b2_rather, b3 = (by_power & spin) | stand, (by_power & rather) | stand, by_power & rest
        either = by_power | by_tensor
        known = np.stack((np.isfinite(r.nic), either, either, by_power))
        return spins, np.where(known, np.stack((b1, b2, b2_rather, b3)), self._keys[:, nodes])

    def _signs(self, nodes: Rows, r: NodeReading, keys: Bools, ended: Bools) -> Signs:
        """Return whether GPUs wait, rest or work, by power, tensor activity where it is read, and traffic.

        A node that usually sends less than ``least_bytes`` is judged by its GPUs alone.
        """
        config, usual = self.config, self._usual.value[nodes]
        power, tensor = usual[:, 1 : 1 + self._gpus], usual[:, 1 + self._gpus :]
        read = np.isfinite(r.utilization + r.power + power)
        by_tensor = np.isfinite(r.tensor) & (tensor >= config.tensor_used)
        share = np.where(by_tensor, config.power_share, config.power_share_alone)
        spins = read & (r.utilization >= config.busy) & (r.power < share * power)
        spins &= ~by_tensor | (r.tensor <= config.tensor)
        measured = read.sum(axis=1)
        waits = (measured > 0) & (spins.sum(axis=1) >= config.gpu_share * measured)
        self._waits[nodes] = np.where(measured > 0, waits, self._waits[nodes])
        sends = (usual[:, 0] >= config.least_bytes) & ~keys[0]
        rests = keys[3] & ~sends
        used = (r.utilization > config.idle).any(axis=1)
        return Signs(wait=self._waits[nodes] & ~sends, rest=rests, work=used & ~rests, ended=ended)

    def _ended(self, r: NodeReading) -> Bools:
        """Return where no GPU is in use and none whose memory is read holds a job's, [n]."""
        read = np.isfinite(r.utilization).any(axis=1)
        in_use = (r.utilization > self.config.idle) | (r.memory > self.config.empty)
        return np.asarray(read & ~in_use.any(axis=1))

    def _hold(self, nodes: Rows, ts: Floats, ended: Bools) -> None:
        keys = self._keys[:, nodes]
        if not (keys.any() or self._held[:, nodes].any()):
            # What nearly always is: nothing is quiet, and nothing was.
            self._since[:, nodes], self._calm[:, nodes] = np.nan, np.fmin(self._calm[:, nodes], ts)
            return
        config, (b1, b2, b2_rather, b3) = self.config, keys
        quiet = np.stack((b1 | b2, b1 & b2, b1 & b2_rather, b1 & b3))
        # fmin passes over NaN: the time that the present stretch began at stays.
        since = np.where(quiet, np.fmin(self._since[:, nodes], ts), np.nan)
        age = ts - since
        one, lasting = age[0] >= config.hold_one, age[1] >= config.hold_lasting
        both, idle = age[2:] >= config.hold_both
        calm = np.where(quiet[:3], np.nan, np.fmin(self._calm[:, nodes], ts))
        over = ended | (ts - calm >= config.clear)
        # While the node is quiet, both keys may fail for as long as all may.
        held = self._held[:, nodes] | np.stack((one | both, idle, both, lasting))
        self._held[:, nodes] = held & ~over[[0, 0, 2, 1]]
        self._since[:, nodes], self._calm[:, nodes] = since, calm

    def _learn(self, nodes: Rows, r: NodeReading, *, stuck: Bools) -> None:
        # Negated, so that a GPU whose utilisation is not read counts as used.
        used = ~(r.utilization <= self.config.idle)
        nic = np.where(used.any(axis=1), r.nic, np.nan)
        x = np.column_stack((nic, np.where(used, r.power, np.nan), np.where(used, r.tensor, np.nan)))
        held, ts = self._held[:, nodes].any(axis=0) | stuck, r.ts
        if held.any():
            nodes, ts, x = np.arange(len(self._last))[nodes][~held], ts[~held], x[~held]
        self._usual.update(nodes, ts, x)
