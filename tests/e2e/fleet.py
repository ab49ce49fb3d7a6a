"""The exporters of a cluster: one spool on disk and one publisher per node, as on the nodes themselves."""

import gc
import threading
import time
from functools import partial

from exporters.disk_store import DiskStore
from exporters.publisher import Publisher, kafka_producer
from exporters.service import message
from exporters.spool import MemoryStore, Spool
from streams.replay import paced


class Fleet:
    """Feeds records into the spools of their nodes, ``speed`` times as fast as they were made."""

    def __init__(self, rig, records, *, speed):
        self._records, self._speed, self._prefix = records, speed, rig.prefix
        self._spools = {node: _spool(rig.home / node) for node in sorted({r.node for r in records})}
        self._publishers = [
            Publisher(spool, partial(kafka_producer, rig.bootstrap, node))
            for node, spool in self._spools.items()
        ]
        self._fed = 0
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
        clock = time.monotonic

        def sleep(seconds: float) -> None:
            self._stop.wait(seconds)

        for record in paced(self._records, speed=self._speed, clock=clock, sleep=sleep):
            if self._stop.is_set():
                return
            self._spools[record.node].put([message(record, self._prefix)], clock())
            self._fed += 1


def _spool(folder):
    return Spool(DiskStore(folder, 64 << 20), MemoryStore(1 << 20))
