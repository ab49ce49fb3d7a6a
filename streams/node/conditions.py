"""Turns conditions of devices that hold in a batch into suspicions."""

from collections.abc import Callable, Set
from functools import partial

from slowrank.telemetry import Suspicion
from streams.debounce import ConditionBank, Debounce, Key, Make, State
from streams.node.batch import Batch
from streams.node.detector import Found
from streams.suspicions import Claim


def at(claim: Callable[[], Claim], ts: float) -> Make:
    """Return a function that makes the suspicion at event time ``ts``; it calls ``claim`` only then."""

    def make(state: State, onset: float) -> Suspicion:
        return claim().suspicion(state, ts=ts, onset=onset)

    return make


def observe(
    bank: ConditionBank,
    batch: Batch,
    active: Set[tuple[int, Key]],
    *,
    debounce: Callable[[Key], Debounce],
    claim: Callable[[int, Key], Claim],
) -> Found:
    """Observe the ``active`` (sample, key) and the pending conditions; yield suspicions in order of both."""
    for k, keys in bank.due(batch.index, active):
        node, ts = int(batch.index[k]), float(batch.ts[k])
        for key in sorted(keys):
            make = at(partial(claim, k, key), ts)
            holds = (k, key) in active
            for s in bank.observe(node, key, holds, ts, debounce=debounce(key), make=make):
                yield k, s
