"""Training hook: time the steps and phases of one rank and send them to the exporter on this node.

Standard library only, and nothing else of slowrank, so that the folder can be copied into any container.
It never raises into training and never blocks it: a step costs a few clock reads and an append to a bounded
ring, a daemon thread writes the ring to a datagram socket once a second, and what cannot be sent is dropped
and counted.

    from slowrank import StepTimer
    timer = StepTimer()
    for batch in loader:
        with timer.step(tokens=batch.size):
            ...
            with timer.phase("wait"):
                all_reduce()

With packed batches, ``seq_len_sq_sum`` beside ``tokens`` separates long sequences from a slow rank.

``SLOWRANK_EXPORTER`` is the exporter's address: ``host:port`` (UDP, 127.0.0.1:9311 by default), the
path of a unix datagram socket, or ``off``.
"""

from slowrank.hook.timer import StepTimer

__all__ = ["StepTimer"]
