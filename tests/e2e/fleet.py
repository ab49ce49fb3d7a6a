"""The exporters of a cluster: one spool on disk and one publisher per node, as on the nodes themselves."""

import gc
import threading
import time
from collections import defaultdict
from functools import partial

from exporters.disk_store import DiskStore
from exporters.publisher import Publisher, kafka_producer
from exporters.service import message
from exporters.spool import MemoryStore, Spool
from streams.files.replay import paced

# Event time by which a record may wait to be sent: half of what a step waits for its ranks.
BEHIND_SECONDS = 2.5

# Time by the clock after which the workers wait for a sender (``reorder_buffer``), with some to spare.
LATE_SECONDS = 4.0


class Fleet:
    """Feeds records into the spools of their nodes, ``speed`` times as fast as they were made.

    What waits for two seconds, for a CPU or for a broker, would be ten seconds late in the time-lapse: by
    event time too late for its step, by the clock too little for the workers to wait for it. No exporter that
    runs in real time can come to that, so time stands still until it is sent, or so late that they do.
    """

    def __init__(self, rig, records, *, speed):
        self._records, self._speed, self._prefix = records, speed, rig.prefix
        self._spools = {node: _spool(rig.home / node) for node in sorted({r.node for r in records})}
        self._publishers = [
            Publisher(spool, partial(kafka_producer, rig.bootstrap, node))
            for node, spool in self._spools.items()
        ]
        self._fed = 0
        self._stood_still = 0.0
        self._made: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._feed)

    def __enter__(self):
        for publisher in self._publishers:
            publisher.start()
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()
        for publisher in self._publishers:
            publisher.stop()
        for spool in self._spools.values():
            spool.close()
        gc.collect()

    @property
    def progress(self):
        """Share of the records that were put into the spools."""
        return self._fed / len(self._records)

    @property
    def waiting(self):
        """Records the brokers have not acknowledged yet."""
        return sum(spool.stats().records for spool in self._spools.values())

    @property
    def dropped(self):
        return sum(spool.stats().dropped_total for spool in self._spools.values())

    @property
    def done(self):
        """Whether every record was made, sent and acknowledged."""
        return self._fed == len(self._records) and self.waiting == 0

    def _feed(self):
        def sleep(seconds: float) -> None:
            self._stop.wait(seconds)

        for record in paced(self._records, speed=self._speed, clock=self._clock, sleep=sleep):
            while self._is_late_in_event_time_alone() and not self._stop.is_set():
                before = time.monotonic()
                sleep(0.02)
                self._stood_still += time.monotonic() - before
            if self._stop.is_set():
                return
            now = time.monotonic()
            self._spools[record.node].put([message(record, self._prefix)], now)
            self._made[record.node].append((record.ts, now))
            self._fed += 1

    def _clock(self):
        return time.monotonic() - self._stood_still

    def _is_late_in_event_time_alone(self):
        """Whether what waits is too old by event time, and not by the clock."""
        now = time.monotonic()
        waiting = {node: self._spools[node].stats().records for node in self._made}
        oldest = [self._made[node][-n] for node, n in waiting.items() if n]
        if not oldest:
            return False
        newest = max(made[-1][0] for made in self._made.values())
        first, since = min(oldest)
        # Of a sender that nothing came of yet, nobody knows what is usual.
        unheard = any(n == len(self._made[node]) for node, n in waiting.items())
        return newest - first > BEHIND_SECONDS and (unheard or now - since < LATE_SECONDS)


def _spool(folder):
    return Spool(DiskStore(folder, 64 << 20), MemoryStore(1 << 20))
