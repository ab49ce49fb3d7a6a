"""The numba kernel of the BOCPD bank: the same recursion as `bocpd_numpy`, one pass, float32 polynomials.

Stock numba wheels have no vector libm, so log and exp are written out; the loops over lanes then vectorise.
Importing this module imports numba; the first call compiles (cached on disk).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from detectors.bocpd_state import EMPTY, REBASE_EVERY, Float, RingState, Tables

_ONE, _HALF = np.float32(1.0), np.float32(0.5)
_LN2, _LOG2E = np.float32(0.6931471805599453), np.float32(1.4426950408889634)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_SMALLEST_EXPONENT = np.float32(-87.0)
_SQRT_HALF_BITS = np.int32(0x3F3504F3)
_EXPONENT_MASK = np.int32(-0x800000)
_BIAS = np.int32(127)
_EMPTY = np.float32(EMPTY)


@intrinsic  # type: ignore[untyped-decorator]
def _bits(context: Any, value: Any) -> Any:
    """float32 → int32 with the same bits."""

    def build(_: Any, builder: Any, __: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(32))

    return types.int32(types.float32), build


@intrinsic  # type: ignore[untyped-decorator]
def _float(context: Any, value: Any) -> Any:
    """int32 → float32 with the same bits."""

    def build(_: Any, builder: Any, __: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.int32), build


@njit(inline="always")  # type: ignore[untyped-decorator]
def _log(x):  # type: ignore[no-untyped-def]
    """Natural logarithm of a positive normal float32, within 2 ulp (Cephes logf)."""
    bits = _bits(x)
    exponent = np.int32(np.int32(bits - _SQRT_HALF_BITS) & _EXPONENT_MASK)
    m = _float(np.int32(bits - exponent)) - _ONE
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


@njit(inline="always")  # type: ignore[untyped-decorator]
def _exp(x):  # type: ignore[no-untyped-def]
    """Exponential of a float32 that is not positive (Cephes expf); below -87 it stays at 1e-38."""
    x = max(x, _SMALLEST_EXPONENT)
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
    return p * _float(np.int32(np.int32(k + _BIAS) << np.int32(23)))


@njit(cache=True, nogil=True, fastmath={"contract"})  # type: ignore[untyped-decorator]
def _learn_ring(x, mu, beta, weight, ring_tables, head, log_weight, top):  # type: ignore[no-untyped-def]
    """Update every run of one block; leave log weights [slots, lanes] and their maxima [lanes]."""
    slots, lanes = mu.shape
    gain, spread, shrink, power, offset = ring_tables
    for slot in range(slots):
        k = slots - 1 - head + slot
        gain_k, spread_k, shrink_k = gain[k], spread[k], shrink[k]
        power_k, offset_k = power[k], offset[k]
        mu_k, beta_k, weight_k, out = mu[slot], beta[slot], weight[slot], log_weight[slot]
        for lane in range(lanes):
            d = x[lane] - mu_k[lane]
            mu_k[lane] += d * gain_k
            b = beta_k[lane] + d * d * spread_k
            beta_k[lane] = b
            value = weight_k[lane] + offset_k - power_k * _log(b * shrink_k)
            out[lane] = value
            top[lane] = max(top[lane], value)


@njit(cache=True, nogil=True, fastmath={"contract"})  # type: ignore[untyped-decorator]
def _sum_ring(log_weight, head, regime_age, top, total, new):  # type: ignore[no-untyped-def]
    """Sums over the ring of exp(log weight - top): all runs, and those younger than the regime."""
    slots, lanes = log_weight.shape
    for slot in range(slots):
        age = np.int32((head - slot) % slots + 1)
        row = log_weight[slot]
        for lane in range(lanes):
            p = _exp(row[lane] - top[lane])
            total[lane] += p
            new[lane] += p if age < regime_age[lane] else np.float32(0.0)


@njit(cache=True, nogil=True, fastmath={"contract"})  # type: ignore[untyped-decorator]
def _learn_old(x, mu, beta, weight, age, tables, limits, log_old):  # type: ignore[no-untyped-def]
    """Update the absorbing slot of every lane of one block and leave its log weight."""
    gain, spread, shrink, power, offset = tables
    cap, forget, capped_step = limits
    for lane in range(len(x)):
        before = min(age[lane], cap)
        after = min(before + 1, cap)
        d = x[lane] - mu[lane]
        mu[lane] += d * gain[before]
        b = beta[lane] + d * d * spread[before]
        if before == cap:
            b *= forget
        log_ratio = _log(b * shrink[after])
        if before == cap:
            weight[lane] += capped_step - _HALF * log_ratio
        beta[lane] = b
        age[lane] += 1 if age[lane] > 0 else 0
        log_old[lane] = weight[lane] + offset[after] - power[after] * log_ratio


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _absorb(ring, old, leaving, log_leaving, log_old):  # type: ignore[no-untyped-def]
    """Fold the run that leaves the ring into the absorbing slot, which keeps the heavier one's statistics."""
    mu, beta, weight = ring
    old_mu, old_beta, old_weight, old_age = old
    slots, lanes = mu.shape
    for lane in range(lanes):
        if log_leaving[lane] > log_old[lane]:
            gain = np.log1p(np.exp(log_old[lane] - log_leaving[lane]))
            old_weight[lane] = weight[leaving, lane] + gain
            old_mu[lane], old_beta[lane] = mu[leaving, lane], beta[leaving, lane]
            old_age[lane] = slots
        elif log_leaving[lane] > log_old[lane] - np.float32(20.0):
            old_weight[lane] += np.log1p(np.exp(log_leaving[lane] - log_old[lane]))
        weight[leaving, lane] = _EMPTY


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _rebase(ring, old, birth, regime_age, log_hazard):  # type: ignore[no-untyped-def]
    weight, old_weight = ring[2], old[2]
    slots, lanes = weight.shape
    for lane in range(lanes):
        if regime_age[lane] > 0:
            shift = birth[lane] - log_hazard
            birth[lane] -= shift
            old_weight[lane] -= shift
            for slot in range(slots):
                weight[slot, lane] -= shift


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _keep(ring, old, others, lane, kept):  # type: ignore[no-untyped-def]
    """Copy one lane's state into kept [slots + 1, 3 + 4]."""
    slots = ring[0].shape[0]
    for k in range(3):
        for slot in range(slots):
            kept[slot, k] = ring[k][slot, lane]
    kept[slots, 0], kept[slots, 1], kept[slots, 2] = old[0][lane], old[1][lane], old[2][lane]
    kept[slots, 3] = old[3][lane]
    kept[slots, 4], kept[slots, 5], kept[slots, 6] = others[0][lane], others[1][lane], others[2][lane]


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _give_back(ring, old, others, lane, kept):  # type: ignore[no-untyped-def]
    """Restore one lane from kept, its ring rolled by one slot into phase with the block."""
    slots = ring[0].shape[0]
    for k in range(3):
        for slot in range(slots):
            ring[k][(slot + 1) % slots, lane] = kept[slot, k]
    old[0][lane], old[1][lane] = np.float32(kept[slots, 0]), np.float32(kept[slots, 1])
    old[2][lane] = np.float32(kept[slots, 2])
    old[3][lane] = np.int32(kept[slots, 3])
    others[0][lane], others[2][lane] = np.float32(kept[slots, 4]), np.float32(kept[slots, 6])
    others[1][lane] = np.int32(kept[slots, 5])


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _advance_block(x, ring, old, others, head, tables, ring_tables, limits, scratch):  # type: ignore[no-untyped-def]
    """One sample of one block without gaps."""
    log_weight, log_old, top, total, new = scratch
    birth, regime_age, probability = others
    slots, lanes = log_weight.shape
    cap, forget, capped_step, log_hazard, mu0, beta0 = limits
    ring[0][head], ring[1][head], ring[2][head] = mu0, beta0, birth
    _learn_old(x, old[0], old[1], old[2], old[3], tables, (cap, forget, capped_step), log_old)
    top[:], total[:], new[:] = log_old, np.float32(0.0), np.float32(0.0)
    _learn_ring(x, ring[0], ring[1], ring[2], ring_tables, head, log_weight, top)
    for lane in range(lanes):
        regime_age[lane] += 1
    _sum_ring(log_weight, head, regime_age, top, total, new)
    for lane in range(lanes):
        p = _exp(log_old[lane] - top[lane])
        total[lane] += p
        if 0 < old[3][lane] < regime_age[lane]:
            new[lane] += p
        probability[lane] = new[lane] / total[lane]
        birth[lane] = log_hazard + top[lane] + _log(total[lane])
    leaving = (head + 1) % slots
    _absorb(ring, old, leaving, log_weight[leaving], log_old)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _feed_block(z, x, ring, old, others, head, tables, ring_tables, limits, scratch):  # type: ignore[no-untyped-def]
    """One sample of one block, around its missing lanes. False, and nothing moves, when all are missing."""
    lanes = len(z)
    missing = np.empty(lanes, np.int64)
    count = 0
    for lane in range(lanes):
        x[lane] = z[lane]
        if np.isnan(z[lane]):
            x[lane] = np.float32(0.0)
            missing[count] = lane
            count += 1
    if count == lanes:
        return False
    kept = np.empty((count, ring[0].shape[0] + 1, 7), np.float64)
    for k in range(count):
        _keep(ring, old, others, missing[k], kept[k])
    _advance_block(x, ring, old, others, head, tables, ring_tables, limits, scratch)
    for k in range(count):
        _give_back(ring, old, others, missing[k], kept[k])
    return True


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _advance(z, out, ring, old, others, head, steps, tables, ring_tables, limits):  # type: ignore[no-untyped-def]
    samples, blocks, lanes = z.shape
    slots = ring[0].shape[1]
    scratch = (
        np.empty((slots, lanes), np.float32),
        np.empty(lanes, np.float32),
        np.empty(lanes, np.float32),
        np.empty(lanes, np.float32),
        np.empty(lanes, np.float32),
    )
    x = np.empty(lanes, np.float32)
    for b in range(blocks):
        ring_b = (ring[0][b], ring[1][b], ring[2][b])
        old_b = (old[0][b], old[1][b], old[2][b], old[3][b])
        others_b = (others[0][b], others[1][b], others[2][b])
        for sample in range(samples):
            if steps[b] % REBASE_EVERY == 0:
                _rebase(ring_b, old_b, others_b[0], others_b[1], limits[3])
            next_head = (head[b] + 1) % slots
            if _feed_block(
                z[sample, b], x, ring_b, old_b, others_b, next_head, tables, ring_tables, limits, scratch
            ):
                head[b] = next_head
                steps[b] += 1
            out[sample, b] = others_b[2]


def advance(state: RingState, tables: Tables, z: Float, out: Float) -> None:
    """Feed z [samples, blocks, lanes] (NaN: not read) and write the mass of new runs after each sample to out."""
    f32 = np.float32
    _advance(
        z,
        out,
        (state.mu, state.beta, state.weight),
        (state.old_mu, state.old_beta, state.old_weight, state.old_age),
        (state.birth, state.regime_age, state.probability),
        state.head,
        state.steps,
        (tables.gain, tables.spread, tables.shrink, tables.power, tables.offset),
        (
            tables.reversed_gain,
            tables.reversed_spread,
            tables.reversed_shrink,
            tables.reversed_power,
            tables.reversed_offset,
        ),
        (
            tables.cap,
            f32(tables.forget),
            f32(tables.capped_step),
            f32(tables.log_hazard),
            f32(tables.mu0),
            f32(tables.beta0),
        ),
    )
