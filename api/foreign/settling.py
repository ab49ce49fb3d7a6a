"""Hands on the rounds that become complete while their senders are silent, once a second."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from api.deps import Services
from api.ingest import SinkUnavailable

log = logging.getLogger(__name__)

# Chosen: as often as rounds are looked at (``api.foreign.ticks``).
EVERY_SECONDS = 1.0


@contextmanager
def settling(services: Services) -> Iterator[None]:
    """Settle in a thread until the end."""
    stop = threading.Event()

    def loop() -> None:
        while not stop.wait(EVERY_SECONDS):
            try:
                settle(services)
            except Exception:
                log.exception("complete rounds of other systems could not be handed on")

    thread = threading.Thread(target=loop, name="settling", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(10)


def settle(services: Services) -> None:
    """Hand complete rounds to the sink; while that takes none they are kept, and requests say so."""
    if services.sink is None:
        return
    with suppress(SinkUnavailable):
        services.foreign.settle(services.sink, services.now().timestamp())
    services.metrics.waiting.set(services.foreign.waiting())
