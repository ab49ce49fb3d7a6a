"""A slow network, from how long the job's collectives take in themselves.

Measured communication contains waiting for whoever comes last, and that rank does not wait: the shortest time
over all ranks is what the transfer itself takes, T = min over ranks of comm seconds, of each step. Sees what
``shared_wait`` cannot: a change of a tenth in T, accumulated over steps, that costs the job 1.5 %.

ln T against its mean over the last 100 steps, with noise of at least 3 %, is weighed by the CUSUM of
``llr_cusum`` for slowdowns of 10 % to 300 %. Over the threshold, the first slow step is located, and the
network is slow when T exceeds half of its present rise in 80 % of the steps since then, 10 at least, and
step / (step - (T - usual T)) >= 1.015 in the median. A rise with a change of compute is a change of the work:
all is learnt anew. Slowness ends after 20 steps without evidence.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from detectors.changepoint.llr_cusum import CusumConfig, locate_onset
from detectors.job.imbalance import slowdown
from detectors.peers.peers import PeerGroups
from detectors.peers.ratios import Ratios
from detectors.robust import nan_median
from detectors.straggler.evidence.timing_channel import TimingChannel, fit_noise

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]

# Chosen: what the job must lose for a slow network to be reported; transfers are mostly hidden behind
# compute.
MIN_JOB_SLOWDOWN = 1.015

# Smallest credible noise of a transfer time. Chosen: reduce-scatters scatter by 5 % and more.
FLOOR = 0.03

# Slowdowns of a transfer tested for. Chosen: above its noise, up to a link at a quarter of its speed.
_EFFECTS = (0.10, 0.25, 0.50, 1.00, 3.00)

# Chosen: effects near the noise keep evidence alive for ever once the network is well again.
_CLEAR_SIGMAS = 3.0

# Transfers are the job's: one series, a group by itself.
_ALONE = PeerGroups.of(np.zeros(1, dtype=np.intp))

# Steps between two fits of what is usual, left out of it at its end, and looked at before the evidence began:
# those of ``step_detector`` and ``candidate``.
_EVERY, _RECENT, _LOOK_BEFORE = 20, 10, 30

# Steps a slow network must have lasted. Chosen: bursts of a few are usual.
_STEPS = 10

# A change of compute beyond the first share means that the work has changed, and its communication with it,
# if transfers rose little; beyond the second in any case. Chosen: compute wanders by some per cent over
# minutes.
_SAME_WORK, _WANDERS = 0.03, 0.08

# How much of what transfers rose by, in logs, compute may have changed by in between. Chosen: transfers that
# rise four times as much as compute are not explained by it.
_OF_RISE = 0.25


@dataclass(frozen=True, slots=True)
class SlowNetwork:
    """Transfers take ``ratio`` times as long as usual, the job ``job_slowdown`` times.

    The first slow step ran from ``onset_lo`` to ``onset``, in event time; ``seconds`` is a transfer now.
    ``members`` (places) are whose transfers these are, None: all ranks'. Where no transfers are ``reported``,
    they are within what ranks do beside what they report.
    """

    ratio: float
    job_slowdown: float
    onset_lo: float
    onset: float
    seconds: float
    members: Ints | None = None
    reported: bool = True


class NetworkWatch:
    """Weighs the transfer time of a job step after step, which is in ``series`` of the history."""

    series = "comm"

    def __init__(self) -> None:
        self.gone = False
        self.begin(0)

    def begin(self, settled: int) -> None:
        """Learn what is usual from the ``settled``-th step of the job on; ``_work`` is its log compute."""
        self._channel = TimingChannel(1, CusumConfig(effects=_EFFECTS))
        self._since, self._work = settled, float("nan")

    def seconds(self, comm: Floats) -> Floats:
        """Return the transfer of each step that is watched, [steps] from [steps, ranks]; NaN: none."""
        return transfer_seconds(comm)

    @property
    def shown(self) -> bool:
        """Whether the network counts as slow."""
        return bool(self._channel.raised[0])

    def update(self, ratios: Ratios) -> SlowNetwork | None:
        """Take the step that ``ratios`` took last; return what begins to show. ``gone``: it has ended."""
        self.gone = False
        transfer = self.seconds(ratios.history.last(self.series, 1))
        if not ratios.settled or not np.isfinite(transfer).any() or ratios.asynchronous:
            return None
        if ratios.settled % _EVERY == 0:
            self._refit(ratios)
        noise = self._channel.noise
        if noise is None:
            return None
        smallest = float(np.expm1(_CLEAR_SIGMAS * noise.sigma[0]))
        self._channel.weigh(np.log(transfer) - noise.center, sigma=noise.sigma, smallest=smallest)
        self.gone = bool(self._channel.settle())
        if self.shown or self._channel.scores()[0] < 1.0:
            return None
        if self._work_changed(ratios, float(noise.center[0])):
            self.begin(ratios.settled)
            return None
        found = self._examine(ratios, float(noise.center[0]), float(noise.sigma[0]))
        if found is not None:
            self._channel.find(0)
        return found

    def _refit(self, ratios: Ratios) -> None:
        steps = min(ratios.settled - self._since, ratios.config.baseline + _RECENT)
        window = np.log(self.seconds(ratios.history.last(self.series, steps)[: max(steps - _RECENT, 0)]))
        if np.isfinite(window).sum() >= _RECENT:
            if self._channel.free[0]:
                self._work = _work(ratios, steps)
            # A log of seconds is nowhere near 0: a wide prior does not draw it there.
            noise = fit_noise(window[:, None], _ALONE, floor=FLOOR, prior=10.0)
            settled = ratios.settled > ratios.config.baseline
            self._channel.refit(noise, largest_move=FLOOR / 2 if settled else None)

    def _examine(self, ratios: Ratios, center: float, sigma: float) -> SlowNetwork | None:
        look_back = min(self._channel.change.age_of(0) + _LOOK_BEFORE, ratios.settled)
        transfer = self.seconds(ratios.history.last(self.series, look_back))
        x = np.log(transfer) - center
        first = locate_onset(x, sigma).index
        # A network that grows slower step by step is as slow as it is now.
        effect = float(nan_median(x[-_STEPS:]))
        if look_back - first < _STEPS or np.nanmean(x[-_STEPS:] > effect / 2) < 0.8:
            return None
        step = nan_median(ratios.history.last("step", look_back), axis=1)
        lost = np.maximum(transfer[-_STEPS:] - float(np.exp(center)), 0.0)
        of_job = float(nan_median(slowdown(step[-_STEPS:], lost)))
        if of_job < MIN_JOB_SLOWDOWN:
            return None
        end = float(nan_median(ratios.history.last("ts", look_back)[first]))
        seconds = float(nan_median(transfer[-_STEPS:]))
        return SlowNetwork(float(np.exp(effect)), of_job, end - float(step[first]), end, seconds)

    def _work_changed(self, ratios: Ratios, center: float) -> bool:
        """Whether compute changed too: another batch, model or schedule has other communication."""
        steps = self._channel.change.age_of(0)
        rise = float(nan_median(np.log(self.seconds(ratios.history.last(self.series, steps))))) - center
        same = min(max(_SAME_WORK, _OF_RISE * rise), _WANDERS)
        # Negated: if compute is not known, it may have changed.
        return not abs(_work(ratios, steps) - self._work) <= same


def transfer_seconds(comm: Floats) -> Floats:
    """Return the shortest communication over all ranks of each step, [steps] from [steps, ranks]; NaN: none.

    >>> transfer_seconds(np.array([[0.4, 0.1, np.nan], [np.nan, np.nan, np.nan]])).tolist()
    [0.1, nan]
    """
    shortest = np.where(np.isfinite(comm) & (comm > 0), comm, np.inf).min(axis=1, initial=np.inf)
    return np.where(np.isinf(shortest), np.nan, shortest)


def _work(ratios: Ratios, steps: int) -> float:
    """Return the log of the seconds that ranks compute for in the last steps; NaN if none is read."""
    return float(nan_median(nan_median(np.log(ratios.history.last("compute", steps)), axis=1)))
