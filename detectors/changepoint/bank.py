"""Bayesian online change-point detection for many series at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from detectors.changepoint import kernel_numpy
from detectors.changepoint.bocpd import LARGEST_INPUT, BocpdConfig, Onset, onset_of, run_statistics
from detectors.changepoint.state import EMPTY, Float, Int32, RingState, Tables, runs_statistics, tables_of

Backend = Literal["auto", "numpy", "numba"]
Kernel = Callable[[RingState, Tables, Float, Float, NDArray[np.int64]], None]
Groups = slice | NDArray[np.int64]
"""Which groups of a bank: a slice where they are neighbours, which copies nothing; else their indices."""

Ints = NDArray[np.int64]
Number = TypeVar("Number", np.floating, np.int32)

# Series per block of the numba kernel, so that the rows of a block stay in registers and L1 cache.
LANES = 64

# float32 in 256 bits, the width that compilers prefer even where the processor has 512.
VECTOR = 8

# Runs per block of the numpy kernel: in smaller blocks the overhead of its sixty calls exceeds what the cache
# saves.
RUNS = 320 * 1024


class BocpdBank:
    """Compute the posterior over the start of the present run of `series` series, vectorised over series.

    A run is the hypothesis that the present regime began n samples ago:

        P(s | x_1..x_t)  ∝  P(s | x_1..x_{t-1}) · (1 − H) · p(x_t | x_s..x_{t-1})        s < t
        P(t | x_1..x_t)  ∝  H · p(x_t | prior)

    with hazard H and Student-t predictive p of ν = 2α degrees of freedom, in the indexing of `bocpd`. With a
    normal-inverse-gamma prior (mu0, kappa0, alpha0, beta0) its log weight after n samples is, by telescoping
    Student-t predictives,

        log w_n = W + A_n − alpha_n · log beta_n        alpha_n = alpha0 + n/2,  kappa_n = kappa0 + n
        mu    ← mu + d / (kappa_n + 1)                  with d = z − mu, the distance of the sample
        beta  ← beta + d² · kappa_n / (2 (kappa_n + 1))
        W     = log H + log Z at the run's birth        H the hazard, Z the sum of all weights before it

    so that each run holds three numbers and costs one log and one exp a sample; `state` has the constants
    A_n. The newest `slots` runs are kept apart, older ones share one absorbing slot with the statistics of
    its heaviest run. `probability` is the share of the weights of runs younger than the accepted regime.

    Each call takes one standardised sample (mean 0, sigma 1) per series; NaN means "not read" and leaves that
    series as it was. 768 bytes a series with 64 slots; float32, or float64 by `dtype` (numpy only). With
    `groups` there are that many times `series` detectors, numbered group after group; a group is what one
    node reads, and any set of groups may be fed. Not thread safe.

    Source: Adams and MacKay (arXiv:0710.3742), equations 1 to 4 in the shifted indexing; Murphy (2007),
    equations 86-89, for the statistics of a run.

    >>> bank = BocpdBank(2, backend="numpy")
    >>> quiet = [0.1, -0.4, 0.3, 0.0, -0.2, 0.5, -0.1, 0.2]
    >>> for x in quiet:
    ...     probability = bank.update([x, x])
    >>> for x in [5.1, 4.8, 5.3, 5.0, 4.9]:
    ...     probability = bank.update([x, 0.1])
    >>> probability.round(2).tolist(), bank.onsets(np.array([0]))[0][1].age
    ([1.0, 0.0], 5)
    """

    def __init__(
        self,
        series: int,
        *,
        groups: int = 1,
        config: BocpdConfig | None = None,
        backend: Backend = "auto",
        dtype: type[np.floating] = np.float32,
    ) -> None:
        if series < 1 or groups < 1:
            raise ValueError(f"a bank needs at least one series and one group, got {series} and {groups}")
        self.series, self.groups = series, groups
        self.config = config or BocpdConfig()
        self.backend = resolve_backend("numpy" if dtype is not np.float32 and backend == "auto" else backend)
        if self.backend == "numba" and dtype is not np.float32:
            raise ValueError("the numba kernel is float32 only; use backend='numpy' for float64")
        self._dtype = dtype
        self._tables = tables_of(self.config, np.dtype(dtype).name)
        self._kernel = _kernel(self.backend)
        most = LANES if self.backend == "numba" else max(1, RUNS // self.config.slots)
        blocks = -(-series // most)
        lanes = -(-series // blocks)
        # Whole vectors: the rest of a loop runs lane by lane, each at the cost of a vector.
        self._lanes = lanes if self.backend == "numpy" else -(-lanes // VECTOR) * VECTOR
        # A block has one clock, so that none is shared by two groups.
        self._blocks = np.arange(groups * blocks).reshape(groups, blocks)
        self._state = RingState.empty(groups * blocks, self._lanes, self.config, dtype)

    @property
    def probability(self) -> Float:
        """Mass of runs that began after the accepted regime start, [series], after the last update."""
        return self._flat(self._state.probability).copy()

    @property
    def regime_age(self) -> Int32:
        """Samples seen since the accepted regime start, [series]; 0 before the first sample."""
        return self._flat(self._state.regime_age).copy()

    def regime_age_of(self, series: Ints) -> Int32:
        """Samples since the accepted regime start of some series."""
        block, lane = self._place(series)
        age: Int32 = self._state.ages[block, 1, lane]
        return age

    def probability_of(self, series: Ints) -> Float:
        """Mass of the new runs of some series."""
        block, lane = self._place(series)
        probability: Float = self._state.probability[block, lane]
        return probability

    def update(self, z: ArrayLike) -> Float:
        """Feed one standardised sample per series, z [series]; return `probability`."""
        return np.asarray(self.update_batch(np.asarray(z, self._dtype)[None])[0])

    def update_batch(self, z: ArrayLike) -> Float:
        """Feed z [samples, series] in order of time; return the probabilities after each sample, same
        shape."""
        values = np.asarray(z, self._dtype)
        if values.ndim != 2 or values.shape[1] != self.series * self.groups:
            raise ValueError(f"expected [samples, {self.series * self.groups}], got shape {values.shape}")
        grouped = values.reshape(len(values), self.groups, self.series)
        return self._feed(grouped, slice(None)).reshape(values.shape)

    def update_groups(self, z: Float, groups: Groups) -> Float:
        """Feed one sample to some groups, z [groups, series]; return their probabilities, same shape."""
        return np.asarray(self._feed(z.astype(self._dtype, copy=False)[None], groups)[0])

    def _feed(self, values: Float, groups: Groups) -> Float:
        """Feed values [samples, groups, series]."""
        which = self._blocks[groups]
        blocked = np.empty((*values.shape[:2], which.shape[1] * self._lanes), self._dtype)
        np.clip(values, -LARGEST_INPUT, LARGEST_INPUT, out=blocked[..., : self.series])
        # Lanes past the last series follow it, so that they are missing exactly when it is.
        blocked[..., self.series :] = blocked[..., self.series - 1 : self.series]
        shape = (len(values), which.size, self._lanes)
        out = np.empty(shape, self._dtype)
        self._kernel(self._state, self._tables, blocked.reshape(shape), out, which.reshape(-1))
        return out.reshape(blocked.shape)[..., : self.series]

    def posterior(self, series: int) -> dict[int, float]:
        """Probability by age of the run, in samples; the absorbing slot stands at the age of its heaviest
        run."""
        (ages,), (log_weights,) = self._log_weights(*self._runs(np.array([series])))
        held = log_weights > -np.inf
        shares = np.exp(log_weights[held] - np.logaddexp.reduce(log_weights))
        return dict(zip(ages[held].tolist(), shares.tolist(), strict=True))

    def onsets(self, series: Ints, *, least_age: int = 1) -> list[tuple[int, Onset]]:
        """Those of some series whose likeliest new run is at least so old, each with its onset.

        LookupError when no run of one of them began after its accepted regime start.
        """
        ages, log_weights = self._log_weights(*self._runs(series))
        log_weights[ages >= self.regime_age_of(series)[:, None]] = -np.inf
        top = np.max(log_weights, axis=1, initial=EMPTY, keepdims=True)
        if not (top > EMPTY).all():
            raise LookupError("no run began after the accepted regime start")
        new, shares = log_weights > -np.inf, np.exp(log_weights - top)
        likeliest = np.take_along_axis(ages, shares.argmax(axis=1)[:, None], axis=1)[:, 0]
        return [
            (int(series[k]), onset_of(ages[k, new[k]].tolist(), shares[k, new[k]].tolist()))
            for k in np.flatnonzero(likeliest >= least_age).tolist()
        ]

    def accept(self, series: Ints, samples: Sequence[Sequence[float]]) -> None:
        """Make the run of its latest `samples` the accepted regime of each of some series.

        Runs as young or younger merge into it: after an alarm most of their mass differs only by a sample
        or two. Older runs stay, so a change accepted in error can still be outweighed.
        """
        age = np.array([len(run) for run in samples])
        ages, runs = self._runs(series)
        _, log_weights = self._log_weights(ages, runs)
        # An absorbing slot without a run has age 0 and counts as merged: at -inf it brings no weight.
        merged = ages <= age[:, None]
        log_weight = np.logaddexp.reduce(np.where(merged, log_weights, -np.inf), axis=1)
        log_weight[log_weight == -np.inf] = 0.0
        old_log_weight = np.where(merged[:, -1], EMPTY, log_weights[:, -1])
        runs[merged, 2], ages[merged] = EMPTY, 0
        mu, beta = np.array([run_statistics(run, self.config) for run in samples]).T
        weight = log_weight - self._evidence(age, beta.astype(self._dtype))
        # Beyond the ring the heavier run has the one slot.
        inside = age < self.config.slots
        k = np.flatnonzero(inside | (log_weight > old_log_weight))
        column = np.where(inside, age - 1, self.config.slots)[k]
        runs[k, column], ages[k, column] = np.stack((mu, beta, weight), axis=1)[k], age[k]
        self._set_runs(series, ages, runs)
        block, lane = self._place(series)
        self._state.ages[block, 1, lane] = age
        self._state.probability[block, lane] = 0.0

    def rescale(self, series: Ints, shift: NDArray[np.float64], scale: NDArray[np.float64]) -> None:
        """Express the runs of some series in units z' = (z - shift) / scale, one each; their weights stay."""
        ages, runs = self._runs(series)
        mu, beta, weight = np.moveaxis(runs, 2, 0)
        mu -= shift.astype(self._dtype)[:, None]
        mu /= scale.astype(self._dtype)[:, None]
        beta /= (scale * scale).astype(self._dtype)[:, None]
        # beta loses a factor scale² and with it the log weight -alpha·log(scale²): W gives that back.
        weight -= 2 * self._tables.by_age[3, np.minimum(ages, self.config.cap)] * np.log(scale)[:, None]
        self._set_runs(series, ages, runs)

    def seed(self, series: Ints, samples: NDArray[np.float64]) -> None:
        """Restart some series, each with one run, that of its `samples` [series, n]."""
        self.reset(series)
        block, lane = self._place(series)
        age, slots = samples.shape[1], self.config.slots
        mu, beta = runs_statistics(samples, self.config)
        _, _, shrink, power, offset = self._tables.by_age[:, min(age, self.config.cap)]
        # W such that the log weight is 0: this run is certain.
        run = np.stack((mu, beta, power * np.log(beta.astype(self._dtype) * shrink) - offset), axis=1)
        if age < slots:
            self._state.ring[block, :, (self._state.clock[block, 0] - age + 1) % slots, lane] = run
        else:
            self._state.rows[block, :3, lane] = run
            self._state.ages[block, 0, lane] = age
        self._state.ages[block, 1, lane] = age
        self._state.rows[block, 3, lane] = self._tables.log_hazard

    def reset(self, series: Ints) -> None:
        """Forget everything about some series."""
        block, lane = self._place(series)
        fresh = RingState.empty(1, 1, self.config, self._dtype).arrays()
        for name, array in self._state.arrays().items():
            # The clock is the block's, and so that of its other lanes.
            if name != "clock":
                array[block, ..., lane] = fresh[name][0, ..., 0]

    def _flat(self, rows: NDArray[Number]) -> NDArray[Number]:
        return rows.reshape(self.groups, -1)[:, : self.series].reshape(-1)

    def _place(self, series: Ints) -> tuple[Ints, Ints]:
        """Return block and lane of some series."""
        group, column = series // self.series, series % self.series
        return group * self._blocks.shape[1] + column // self._lanes, column % self._lanes

    def _runs(self, series: Ints) -> tuple[Ints, Float]:
        """Return every run of some series, from the youngest slot to the absorbing one.

        Their ages [series, slots + 1], 0 for an absorbing slot without a run, and mu, beta and W
        [series, slots + 1, 3].
        """
        block, lane = self._place(series)
        runs = np.empty((len(series), self.config.slots + 1, 3), self._dtype)
        runs[:, :-1] = self._state.ring[block[:, None], :, self._slots(block), lane[:, None]]
        runs[:, -1] = self._state.rows[block, :3, lane]
        ages = np.tile(np.arange(1, self.config.slots + 2), (len(series), 1))
        ages[:, -1] = self._state.ages[block, 0, lane]
        return ages, runs

    def _set_runs(self, series: Ints, ages: Ints, runs: Float) -> None:
        block, lane = self._place(series)
        self._state.ring[block[:, None], :, self._slots(block), lane[:, None]] = runs[:, :-1]
        self._state.rows[block, :3, lane] = runs[:, -1]
        self._state.ages[block, 0, lane] = ages[:, -1]

    def _slots(self, block: Ints) -> Ints:
        """Return where in the ring of each block the runs of age 1, 2, … stand, [blocks, slots]."""
        slots: Ints = (self._state.clock[block, :1] - np.arange(self.config.slots)) % self.config.slots
        return slots

    def _log_weights(self, ages: Ints, runs: Float) -> tuple[Ints, NDArray[np.float64]]:
        """Return the ages and the log weights of runs; -inf: no run."""
        # Half of EMPTY is far from any weight and from EMPTY, however that is rounded or has been shifted.
        held = runs[..., 2] > EMPTY / 2
        held[:, -1] = ages[:, -1] > 0
        weight = runs[..., 2].astype(np.float64) + self._evidence(ages, runs[..., 1])
        return ages, np.where(held, weight, -np.inf)

    def _evidence(self, age: ArrayLike, beta: ArrayLike) -> Float:
        """Log weight of runs of these ages, apart from W."""
        _, _, shrink, power, offset = self._tables.by_age[:, np.minimum(age, self.config.cap)]
        return np.asarray(offset - power * np.log(beta * shrink))


def resolve_backend(backend: Backend) -> Literal["numpy", "numba"]:
    """The kernel to use: "auto" is numba where it is installed. ModuleNotFoundError for an absent "numba"."""
    if backend == "numpy":
        return "numpy"
    if backend == "auto" and not _numba_imports():
        return "numpy"
    if backend in ("auto", "numba"):
        return "numba"
    raise ValueError(f"backend is 'auto', 'numpy' or 'numba', got {backend!r}")


@cache
def _numba_imports() -> bool:
    try:
        import numba  # noqa: F401 (only whether it is there)
    except ImportError:
        return False
    return True


def _kernel(backend: Literal["numpy", "numba"]) -> Kernel:
    if backend == "numpy":
        return kernel_numpy.advance
    from detectors.changepoint import kernel_numba

    return kernel_numba.advance
