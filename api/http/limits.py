"""Rate limits: token buckets by name, in this process."""

import math
import threading
from collections import OrderedDict
from dataclasses import dataclass

# Chosen: bounds the memory to some MB, since every unknown address makes a bucket.
MAX_KEYS = 10_000


@dataclass(frozen=True, slots=True)
class Rate:
    """``per_second`` tokens come back each second, up to ``burst``."""

    per_second: float
    burst: float


# Per key, failed attempts per address. Chosen: a dashboard with a few panels stays far below the read limit;
# guessing a 256-bit secret at one attempt a second is hopeless.
READ = Rate(20, 60)
WRITE = Rate(5, 20)
# Chosen: 50 shards of a Prometheus, its default maximum, each with two requests a second.
TELEMETRY = Rate(100, 400)
FAILED_AUTH = Rate(1, 20)


class Limiter:
    """Buckets by name; the least recently used one is dropped when there are too many."""

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._max_keys = max_keys
        self._lock = threading.Lock()

    def forget(self) -> None:
        """Fill every bucket again."""
        with self._lock:
            self._buckets.clear()

    def left(self, name: str, rate: Rate, now: float) -> float:
        """Return the tokens of a bucket at monotonic time ``now`` (s), without taking one."""
        with self._lock:
            tokens, at = self._buckets.get(name, (rate.burst, now))
        return min(rate.burst, tokens + (now - at) * rate.per_second)

    def take(self, name: str, rate: Rate, now: float) -> float:
        """Take a token at monotonic time ``now`` (s); return 0.0, or the seconds until there is one."""
        with self._lock:
            tokens, at = self._buckets.get(name, (rate.burst, now))
            tokens = min(rate.burst, tokens + (now - at) * rate.per_second)
            wait = 0.0 if tokens >= 1 else (1 - tokens) / rate.per_second
            self._buckets[name] = (tokens - (1 if wait == 0.0 else 0), now)
            self._buckets.move_to_end(name)
            if len(self._buckets) > self._max_keys:
                self._buckets.popitem(last=False)
        return wait


def quota_headers(name: str, rate: Rate, left: float) -> dict[str, str]:
    """Return the header fields of a quota (draft-ietf-httpapi-ratelimit-headers-10).

    ``q`` requests may come at once, ``r`` of them now; all are back after ``w`` and ``t`` seconds.
    """
    window, until = rate.burst / rate.per_second, (rate.burst - left) / rate.per_second
    return {
        "ratelimit-policy": f'"{name}";q={rate.burst:.0f};w={math.ceil(window)}',
        "ratelimit": f'"{name}";r={int(left)};t={math.ceil(until)}',
    }
