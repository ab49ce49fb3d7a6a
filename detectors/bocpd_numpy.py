"""The numpy kernel of the BOCPD bank: one block of series at a time, fifteen passes over [slots, lanes]."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from detectors.bocpd_state import EMPTY, REBASE_EVERY, Float, RingState, Tables


def advance(state: RingState, tables: Tables, z: Float, out: Float) -> None:
    """Feed z [samples, blocks, lanes] (NaN: not read) and write the mass of new runs after each sample to out.

    A block in which no lane has a value does not move.
    """
    scratch = np.empty_like(state.mu[0]), np.empty_like(state.mu[0])
    for block in range(z.shape[1]):
        ring = _Block(state, tables, block, scratch)
        for sample in range(z.shape[0]):
            ring.feed(z[sample, block])
            out[sample, block] = ring.probability


class _Block:
    """Views of one block's state; names as in RingState."""

    def __init__(self, state: RingState, tables: Tables, block: int, scratch: tuple[Float, Float]) -> None:
        self._state, self._tables, self._block = state, tables, block
        self._log_weight, self._buffer = scratch
        self._mu, self._beta, self._weight = state.mu[block], state.beta[block], state.weight[block]
        self._old_mu, self._old_beta = state.old_mu[block], state.old_beta[block]
        self._old_weight, self._old_age = state.old_weight[block], state.old_age[block]
        self._birth, self._regime_age = state.birth[block], state.regime_age[block]
        self.probability = state.probability[block]

    def feed(self, z: Float) -> None:
        missing = np.isnan(z)
        if not missing.any():
            self._advance(z)
        elif not missing.all():
            self._advance_around(z, missing)

    def _advance_around(self, z: Float, missing: NDArray[np.bool_]) -> None:
        """Advance the lanes with a value; give the others their state back, rolled into phase with the block."""
        rows = [self._old_mu, self._old_beta, self._old_weight, self._old_age]
        rows += [self._birth, self._regime_age, self.probability]
        ring = [self._mu, self._beta, self._weight]
        self._rebase_if_due()
        paused = np.flatnonzero(missing & (self._regime_age > 0))
        kept_rows = [row[missing] for row in rows]
        kept_ring = [array[:, paused] for array in ring]
        self._advance(np.where(missing, 0, z))
        for row, kept in zip(rows, kept_rows, strict=True):
            row[missing] = kept
        self._weight[self._state.head[self._block], missing] = EMPTY
        for array, kept in zip(ring, kept_ring, strict=True):
            array[:, paused] = np.roll(kept, 1, axis=0)

    def _advance(self, z: Float) -> None:
        self._rebase_if_due()
        slots = len(self._mu)
        head = (int(self._state.head[self._block]) + 1) % slots
        self._state.head[self._block] = head
        self._state.steps[self._block] += 1
        self._learn_ring(z, head)
        log_old = self._learn_old(z)
        leaving = (head + 1) % slots
        log_leaving = self._log_weight[leaving].copy()
        self._normalise(head, log_old)
        self._absorb(leaving, log_leaving, log_old)

    def _rebase_if_due(self) -> None:
        if self._state.steps[self._block] % REBASE_EVERY:
            return
        log_hazard = self._tables.log_hazard
        shift = np.where(self._regime_age > 0, self._birth - log_hazard, 0).astype(self._birth.dtype)
        self._birth -= shift
        self._old_weight -= shift
        self._weight -= shift

    def _learn_ring(self, z: Float, head: int) -> None:
        """Give birth at head, update all runs of the ring and leave their log weights in the scratch array."""
        tables, slots = self._tables, len(self._mu)
        order = slice(slots - 1 - head, 2 * slots - 1 - head)
        self._mu[head], self._beta[head], self._weight[head] = tables.mu0, tables.beta0, self._birth
        d, buffer = self._log_weight, self._buffer
        np.subtract(z, self._mu, out=d)
        np.multiply(d, tables.reversed_gain[order, None], out=buffer)
        self._mu += buffer
        np.multiply(d, d, out=d)
        d *= tables.reversed_spread[order, None]
        self._beta += d
        np.multiply(self._beta, tables.reversed_shrink[order, None], out=d)
        np.log(d, out=d)
        d *= tables.reversed_power[order, None]
        np.subtract(self._weight, d, out=d)
        d += tables.reversed_offset[order, None]

    def _learn_old(self, z: Float) -> Float:
        """Update the absorbing slot of every lane and return its log weight."""
        tables, cap = self._tables, self._tables.cap
        age = self._old_age
        capped = age >= cap
        all_capped = bool(capped.all())
        before = cap if all_capped else np.minimum(age, cap)
        after = cap if all_capped else np.minimum(age + 1, cap)
        d = z - self._old_mu
        self._old_mu += d * tables.gain[before]
        self._old_beta += d * d * tables.spread[before]
        if capped.any():
            self._old_beta[capped] *= tables.forget
        log_ratio = np.log(self._old_beta * tables.shrink[after])
        if capped.any():
            self._old_weight[capped] += tables.capped_step - 0.5 * log_ratio[capped]
        age += age > 0
        log_old: Float = self._old_weight + tables.offset[after] - tables.power[after] * log_ratio
        return log_old

    def _normalise(self, head: int, log_old: Float) -> None:
        """Posterior of all runs, the weight of the next birth and the mass born after the regime start."""
        weights = self._log_weight
        top = np.maximum(weights.max(axis=0), log_old)
        weights -= top
        np.exp(weights, out=weights)
        new = weights.sum(axis=0)
        old = np.exp(log_old - top)
        total = new + old
        np.log(total, out=self._birth)
        self._birth += top
        self._birth += self._tables.log_hazard
        self._regime_age += 1
        slots = len(weights)
        short = np.flatnonzero(self._regime_age <= slots)
        if len(short):
            ages = (head - np.arange(slots)) % slots + 1
            young = ages[:, None] < self._regime_age[short]
            new[short] = np.where(young, weights[:, short], 0).sum(axis=0)
        new += np.where((self._old_age > 0) & (self._old_age < self._regime_age), old, 0)
        np.divide(new, total, out=self.probability)

    def _absorb(self, leaving: int, log_leaving: Float, log_old: Float) -> None:
        """Fold the run that leaves the ring into the absorbing slot, which keeps the heavier one's statistics."""
        heavier = log_leaving > log_old
        self._old_weight += np.log1p(np.exp(np.minimum(log_leaving - log_old, 0)))
        if heavier.any():
            gain = np.log1p(np.exp(log_old[heavier] - log_leaving[heavier]))
            self._old_weight[heavier] = self._weight[leaving, heavier] + gain
            self._old_mu[heavier] = self._mu[leaving, heavier]
            self._old_beta[heavier] = self._beta[leaving, heavier]
            self._old_age[heavier] = len(self._mu)
        self._weight[leaving] = EMPTY
