"""The numba kernel of the BOCPD bank: the recursion of `kernel_numpy` in one pass, with float32 polynomials.

Numba's wheels have no vector libm, so log and exp are written out; the loops over lanes then vectorise.
Importing this module imports numba; the first call compiles (cached on disk). Elements are copied one by
one: an assignment between slices also compiles numpy's broadcasting error message, which takes longer than
the kernel itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from detectors.changepoint.state import EMPTY, REBASE_EVERY, Float, RingState, Tables

_ONE, _HALF = np.float32(1.0), np.float32(0.5)
_LN2, _LOG2E = np.float32(0.6931471805599453), np.float32(1.4426950408889634)
# ln 2 in two parts, the first 355/512: times a whole number it is exact, and x - k·ln 2 keeps its digits.
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
# exp(-87) is 1.6e-38, above the least normal float32: `_exp` can still write 2^k as an exponent.
_SMALLEST_EXPONENT = np.float32(-87.0)
# float32 by its bits: the square root of ½, the mask of sign and exponent, the exponent's offset.
_SQRT_HALF_BITS = np.int32(0x3F3504F3)
_EXPONENT_MASK = np.int32(-0x800000)
_BIAS = np.int32(127)
_EMPTY = np.float32(EMPTY)


def _bitcast(context: Any, value: Any) -> Any:
    """float32 ↔ int32 with the same bits."""
    to_int = value == types.float32
    target, llvm = (types.int32, ir.IntType(32)) if to_int else (types.float32, ir.FloatType())

    def build(_: Any, builder: Any, __: Any, args: Any) -> Any:
        return builder.bitcast(args[0], llvm)

    return target(value), build


_bits: Any = intrinsic(_bitcast)


@njit(inline="always")
def _log(x):
    """Natural logarithm of a positive normal float32, within 2 ulp (Cephes logf)."""
    # x = 2^e·(1 + m) with 1 + m in [√½, √2), which is where the polynomial holds.
    bits = _bits(x)
    exponent = np.int32(np.int32(bits - _SQRT_HALF_BITS) & _EXPONENT_MASK)
    m = _bits(np.int32(bits - exponent)) - _ONE
    e = np.float32(np.int32(exponent >> np.int32(23)))
    p = np.float32(7.0376836292e-2)
    p = p * m + np.float32(-1.1514610310e-1)
    p = p * m + np.float32(1.1676998740e-1)
    p = p * m + np.float32(-1.2420140846e-1)
    p = p * m + np.float32(1.4249322787e-1)
    p = p * m + np.float32(-1.6668057665e-1)
    p = p * m + np.float32(2.0000714765e-1)
    p = p * m + np.float32(-2.4999993993e-1)
    p = p * m + np.float32(3.3333331174e-1)
    m2 = m * m
    return m + (p * m * m2 - _HALF * m2 + e * _LN2)


@njit(inline="always")
def _exp(x):
    """Exponential of a float32 that is not positive (Cephes expf); below -87 it stays at 1e-38."""
    x = max(x, _SMALLEST_EXPONENT)
    # int32 cuts towards zero, and the number is negative: less a half, it rounds to the nearest.
    k = np.int32(x * _LOG2E - _HALF)
    f = np.float32(k)
    r = x - f * _LN2_HIGH - f * _LN2_LOW
    p = np.float32(1.9875691500e-4)
    p = p * r + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    p = p * r * r + r + _ONE
    # 2^k by its bits.
    return p * _bits(np.int32(np.int32(k + _BIAS) << np.int32(23)))


@njit(cache=True, nogil=True, fastmath={"contract"})
def _learn_ring(x, ring, by_slot, head, log_weight, top):
    """Update every run of one block; leave log weights [slots, lanes] and their maxima [lanes]."""
    _, slots, lanes = ring.shape
    for slot in range(slots):
        k = slots - 1 - head + slot
        gain_k, spread_k, shrink_k, power_k, offset_k = (
            by_slot[0, k],
            by_slot[1, k],
            by_slot[2, k],
            by_slot[3, k],
            by_slot[4, k],
        )
        mu_k, beta_k, weight_k, out = ring[0, slot], ring[1, slot], ring[2, slot], log_weight[slot]
        for lane in range(lanes):
            d = x[lane] - mu_k[lane]
            mu_k[lane] += d * gain_k
            b = beta_k[lane] + d * d * spread_k
            beta_k[lane] = b
            value = weight_k[lane] + offset_k - power_k * _log(b * shrink_k)
            out[lane] = value
            top[lane] = max(top[lane], value)


@njit(cache=True, nogil=True, fastmath={"contract"})
def _sum_ring(log_weight, head, regime_age, top, total, new):
    """Sums over the ring of exp(log weight - top): all runs, and those younger than the regime."""
    slots, lanes = log_weight.shape
    for slot in range(slots):
        age = np.int32((head - slot) % slots + 1)
        row = log_weight[slot]
        for lane in range(lanes):
            p = _exp(row[lane] - top[lane])
            total[lane] += p
            new[lane] += p if age < regime_age[lane] else np.float32(0.0)


@njit(cache=True, nogil=True, fastmath={"contract"})
def _learn_old(x, rows, age, by_age, constants, log_old):
    """Update the absorbing slot of every lane of one block and leave its log weight."""
    cap = by_age.shape[1] - 1
    forget, capped_step = constants[1], constants[2]
    for lane in range(len(x)):
        before = min(age[lane], cap)
        after = min(before + 1, cap)
        d = x[lane] - rows[0, lane]
        rows[0, lane] += d * by_age[0, before]
        b = rows[1, lane] + d * d * by_age[1, before]
        if before == cap:
            b *= forget
        log_ratio = _log(b * by_age[2, after])
        if before == cap:
            rows[2, lane] += capped_step - _HALF * log_ratio
        rows[1, lane] = b
        age[lane] += 1 if age[lane] > 0 else 0
        log_old[lane] = rows[2, lane] + by_age[4, after] - by_age[3, after] * log_ratio


@njit(cache=True, nogil=True)
def _absorb(ring, rows, old_age, leaving, log_leaving, log_old):
    """Fold the run that leaves the ring into the absorbing slot, which keeps the heavier one's statistics."""
    for lane in range(len(log_old)):
        gain = log_leaving[lane] - log_old[lane]
        if gain > np.float32(0.0):
            for k in range(3):
                rows[k, lane] = ring[k, leaving, lane]
            rows[2, lane] += _log(_ONE + _exp(-gain))
            old_age[lane] = ring.shape[1]
        else:
            rows[2, lane] += _log(_ONE + _exp(gain))
        ring[2, leaving, lane] = _EMPTY


@njit(cache=True, nogil=True)
def _rebase(ring, rows, regime_age, log_hazard):
    for lane in range(len(regime_age)):
        if regime_age[lane] > 0:
            shift = rows[3, lane] - log_hazard
            rows[3, lane] -= shift
            rows[2, lane] -= shift
            for slot in range(ring.shape[1]):
                ring[2, slot, lane] -= shift


@njit(cache=True, nogil=True)
def _give_back(ring, rows, ages, lane, head, kept):
    """Restore one paused lane from kept, its ring rolled by one slot into phase with the block."""
    kept_ring, kept_rows, kept_ages = kept
    slots = ring.shape[1]
    for k in range(len(kept_rows)):
        rows[k, lane] = kept_rows[k]
    for k in range(len(kept_ages)):
        ages[k, lane] = kept_ages[k]
    # Before its first sample a lane has no runs to give back (none were kept): its birth is undone.
    if ages[1, lane] == 0:
        ring[2, head, lane] = _EMPTY
        return
    for k in range(3):
        for slot in range(slots):
            ring[k, (slot + 1) % slots, lane] = kept_ring[k, slot]


@njit(cache=True, nogil=True, fastmath={"contract"})
def _advance_block(x, block, head, tables, scratch):
    """One sample of one block without gaps."""
    ring, rows, ages = block
    by_age, by_slot, constants = tables
    log_weight, lanes_scratch = scratch
    log_old, top, total, new = lanes_scratch[0], lanes_scratch[1], lanes_scratch[2], lanes_scratch[3]
    log_hazard = constants[0]
    lanes = len(x)
    for lane in range(lanes):
        ring[0, head, lane], ring[1, head, lane], ring[2, head, lane] = (
            constants[3],
            constants[4],
            rows[3, lane],
        )
    _learn_old(x, rows, ages[0], by_age, constants, log_old)
    for lane in range(lanes):
        top[lane], total[lane], new[lane] = log_old[lane], np.float32(0.0), np.float32(0.0)
    _learn_ring(x, ring, by_slot, head, log_weight, top)
    for lane in range(lanes):
        ages[1, lane] += 1
    _sum_ring(log_weight, head, ages[1], top, total, new)
    for lane in range(lanes):
        p = _exp(log_old[lane] - top[lane])
        total[lane] += p
        if 0 < ages[0, lane] < ages[1, lane]:
            new[lane] += p
        rows[4, lane] = new[lane] / total[lane]
        rows[3, lane] = log_hazard + top[lane] + _log(total[lane])
    leaving = (head + 1) % ring.shape[1]
    _absorb(ring, rows, ages[0], leaving, log_weight[leaving], log_old)


@njit(cache=True, nogil=True)
def _feed_block(z, block, head, tables, scratch):
    """One sample of one block, around its missing lanes. False, and nothing moves, when all are missing."""
    ring, rows, ages = block
    x = np.empty_like(z)
    for lane in range(len(z)):
        x[lane] = np.float32(0.0) if np.isnan(z[lane]) else z[lane]
    missing = np.flatnonzero(np.isnan(z))
    if len(missing) == len(z):
        return False
    if len(missing) == 0:
        _advance_block(x, block, head, tables, scratch)
        return True
    kept_ring = np.empty((len(missing), 3, ring.shape[1]), np.float32)
    for k in range(len(missing)):
        if ages[1, missing[k]] > 0:
            for part in range(3):
                for slot in range(ring.shape[1]):
                    kept_ring[k, part, slot] = ring[part, slot, missing[k]]
    kept_rows, kept_ages = rows[:, missing], ages[:, missing]
    _advance_block(x, block, head, tables, scratch)
    for k in range(len(missing)):
        _give_back(ring, rows, ages, missing[k], head, (kept_ring[k], kept_rows[:, k], kept_ages[:, k]))
    return True


@njit(cache=True, nogil=True)
def _advance(z, out, which, ring, rows, ages, clock, by_age, by_slot, constants):
    samples, blocks, lanes = z.shape
    slots = ring.shape[2]
    scratch = (np.empty((slots, lanes), np.float32), np.empty((4, lanes), np.float32))
    tables = (by_age, by_slot, constants)
    for place in range(blocks):
        b = which[place]
        block = (ring[b], rows[b], ages[b])
        for sample in range(samples):
            if clock[b, 1] % REBASE_EVERY == 0:
                _rebase(ring[b], rows[b], ages[b, 1], constants[0])
            head = (clock[b, 0] + 1) % slots
            if _feed_block(z[sample, place], block, head, tables, scratch):
                clock[b, 0] = head
                clock[b, 1] += 1
            out[sample, place] = rows[b, 4]


def advance(state: RingState, tables: Tables, z: Float, out: Float, which: NDArray[np.int64]) -> None:
    """Feed z [samples, blocks, lanes] (NaN: not read) to the blocks `which`, and write the mass of new runs
    after each sample to out."""
    constants = np.array(
        [tables.log_hazard, tables.forget, tables.capped_step, tables.mu0, tables.beta0], np.float32
    )
    arrays = (state.ring, state.rows, state.ages, state.clock)
    _advance(z, out, which, *arrays, tables.by_age, tables.by_slot, constants)
