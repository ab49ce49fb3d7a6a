"""The numpy kernel of the BOCPD bank: one block of series at a time, fifteen passes over [slots, lanes]."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from detectors.changepoint.state import EMPTY, REBASE_EVERY, Float, RingState, Tables


def advance(state: RingState, tables: Tables, z: Float, out: Float, which: NDArray[np.int64]) -> None:
    """Feed z [samples, blocks, lanes] (NaN: not read) to the blocks `which`, and write the mass of new runs
    after each sample to out.

    A block in which no lane has a value does not move.
    """
    scratch = np.empty((2, *state.ring.shape[2:]), state.ring.dtype)
    for place, number in enumerate(which.tolist()):
        block = _Block(state, tables, number, scratch)
        for sample in range(z.shape[0]):
            block.feed(z[sample, place])
            out[sample, place] = block.probability


class _Block:
    """Views of one block's state; names as in RingState."""

    def __init__(self, state: RingState, tables: Tables, number: int, scratch: Float) -> None:
        self._tables = tables
        self._ring, self._rows = state.ring[number], state.rows[number]
        self._ages, self._clock = state.ages[number], state.clock[number]
        self._mu, self._beta, self._weight = self._ring
        self._old_mu, self._old_beta, self._old_weight, self._birth, self.probability = self._rows
        self._old_age, self._regime_age = self._ages
        self._log_weight, self._buffer = scratch

    def feed(self, z: Float) -> None:
        missing = np.isnan(z)
        if not missing.any():
            self._advance(z)
        elif not missing.all():
            self._advance_around(z, missing)

    def _advance_around(self, z: Float, missing: NDArray[np.bool_]) -> None:
        """Advance the lanes with a value; give the others their state back, rolled into phase with the
        block."""
        # Before the copies are taken, or what is given back below would miss its turn.
        self._rebase_if_due()
        idle = np.flatnonzero(missing)
        paused = idle[self._regime_age[idle] > 0]
        rows, ages, ring = self._rows[:, idle], self._ages[:, idle], self._ring[:, :, paused]
        self._advance(np.where(missing, 0, z))
        self._rows[:, idle], self._ages[:, idle] = rows, ages
        # A lane without any sample yet has no runs to give back: only its birth at head is undone.
        self._weight[self._clock[0], idle] = EMPTY
        self._ring[:, :, paused] = np.roll(ring, 1, axis=1)

    def _advance(self, z: Float) -> None:
        self._rebase_if_due()
        slots = len(self._mu)
        head = (int(self._clock[0]) + 1) % slots
        self._clock[0] = head
        self._clock[1] += 1
        self._learn_ring(z, head)
        log_old = self._learn_old(z)
        leaving = (head + 1) % slots
        # A copy, for _normalise makes the log weights probabilities in place.
        log_leaving = self._log_weight[leaving].copy()
        self._normalise(head, log_old)
        self._absorb(leaving, log_leaving, log_old)

    def _rebase_if_due(self) -> None:
        if self._clock[1] % REBASE_EVERY:
            return
        # log Z. A lane without samples has a birth of 0 (certain), not log H + log Z: nothing to take off.
        shift = np.where(self._regime_age > 0, self._birth - self._tables.log_hazard, 0)
        shift = shift.astype(self._birth.dtype)
        self._birth -= shift
        self._old_weight -= shift
        self._weight -= shift

    def _learn_ring(self, z: Float, head: int) -> None:
        """Give birth at head, update all runs of the ring and leave their log weights in the scratch
        array."""
        slots = len(self._mu)
        table = self._tables.by_slot[:, slots - 1 - head : 2 * slots - 1 - head, None]
        gain, spread, shrink, power, offset = table
        self._mu[head], self._beta[head], self._weight[head] = (
            self._tables.mu0,
            self._tables.beta0,
            self._birth,
        )
        # d is in turn the distance, its part of beta, the logarithm and the log weight: no pass allocates.
        d, buffer = self._log_weight, self._buffer
        np.subtract(z, self._mu, out=d)
        np.multiply(d, gain, out=buffer)
        self._mu += buffer
        np.multiply(d, d, out=d)
        d *= spread
        self._beta += d
        np.multiply(self._beta, shrink, out=d)
        np.log(d, out=d)
        d *= power
        np.subtract(self._weight, d, out=d)
        d += offset

    def _learn_old(self, z: Float) -> Float:
        """Update the absorbing slot of every lane and return its log weight."""
        cap, age = self._tables.cap, self._old_age
        d = z - self._old_mu
        # After some time all old runs are at the cap, and their table entries are scalars.
        if int(age.min()) >= cap:
            gain, spread, shrink, power, offset = self._tables.by_age[:, cap]
            capped: NDArray[np.bool_] | slice = slice(None)
        else:
            gain, spread = self._tables.by_age[:2, np.minimum(age, cap)]
            shrink, power, offset = self._tables.by_age[2:, np.minimum(age + 1, cap)]
            capped = age >= cap
        self._old_mu += d * gain
        d *= d
        d *= spread
        self._old_beta += d
        self._old_beta[capped] *= self._tables.forget
        log_ratio = np.log(self._old_beta * shrink)
        self._old_weight[capped] += self._tables.capped_step - 0.5 * log_ratio[capped]
        age += age > 0
        log_old: Float = self._old_weight + offset - power * log_ratio
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
        # To a regime older than the ring every run of the ring is new: only younger ones need a mask.
        short = np.flatnonzero(self._regime_age <= slots)
        if len(short):
            ages = (head - np.arange(slots)) % slots + 1
            young = ages[:, None] < self._regime_age[short]
            new[short] = np.where(young, weights[:, short], 0).sum(axis=0)
        young_old = self._old_age < self._regime_age
        if young_old.any():
            new += np.where(young_old & (self._old_age > 0), old, 0)
        np.divide(new, total, out=self.probability)

    def _absorb(self, leaving: int, log_leaving: Float, log_old: Float) -> None:
        """Fold the run that leaves the ring into the absorbing slot, which keeps the heavier one's
        statistics."""
        # A log weight is W and the evidence of its run: log(1 + lighter / heavier) on the W of the one that
        # stays adds both weights.
        log_leaving -= log_old
        heavier = np.flatnonzero(log_leaving > 0)
        self._old_weight += np.log1p(np.exp(np.minimum(log_leaving, 0)))
        if len(heavier):
            gain = np.log1p(np.exp(-log_leaving[heavier]))
            self._rows[:3, heavier] = self._ring[:, leaving, heavier]
            self._old_weight[heavier] += gain
            self._old_age[heavier] = len(self._mu)
        self._weight[leaving] = EMPTY
