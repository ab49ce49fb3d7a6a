"""One rank of the rig's training job: `python -m benchmarks.rig.rank --addresses HOST:PORT,…`, with RANK set.

The network, its gradient and the training hook are those of ``examples/numpy_training.py``; gradients are
averaged over TCP, so that a fault of a link is one of the job. The device time of a step is slept.

SIGUSR1 makes user code slow from the next step on (``--extra`` seconds a step), until it comes again; SIGUSR2
lets it never return. A rank that loses a neighbour waits for ever, as NCCL does without its watchdog.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np

from benchmarks.rig.ring import Ring
from benchmarks.rig.user_code import FOREVER_SECONDS, UserCode, rank_options
from examples.numpy_training import BATCH, Network, accumulate, load
from slowrank import StepTimer

T = TypeVar("T")

# Chosen: a collection or a checkpoint now and then is what healthy jobs have too.
_CHECKPOINT_STEPS, _CHECKPOINT_SECONDS = 50, 1.0


def train(ring: Ring, options: argparse.Namespace) -> None:
    """Train until killed."""
    rng = np.random.default_rng(ring.rank)
    network = Network(np.random.default_rng(0))
    timer = StepTimer(coords={"dp": ring.rank})
    user_code = UserCode(options.extra)
    step = 0
    while True:
        with timer.step(step, tokens=BATCH):
            with timer.phase("compute"):
                began = time.perf_counter()
                gradient, loss = accumulate(network, [load(rng)])
                time.sleep(max(0.0, began + options.device - time.perf_counter()))
                user_code.run()
            with timer.phase("wait"):
                _without_watchdog(ring.barrier)
            with timer.phase("comm"):
                mean = _without_watchdog(partial(ring.mean, gradient))
            with timer.phase("compute"):
                network.flat -= 0.01 * mean
            if step % _CHECKPOINT_STEPS == _CHECKPOINT_STEPS - 1:
                with timer.phase("checkpoint"):
                    time.sleep(_CHECKPOINT_SECONDS)
            timer.note(loss=loss)
        step += 1
        if ring.rank == 0:
            print(f"step {step}", flush=True)


def _without_watchdog(collective: Callable[[], T]) -> T:
    """Run a collective; one whose neighbour is lost does not return."""
    try:
        return collective()
    except ConnectionError as error:
        print(error, flush=True)
        while True:
            time.sleep(FOREVER_SECONDS)


def main() -> None:
    """Read the command line and train."""
    options = rank_options(__doc__)
    addresses = [part.rsplit(":", 1) for part in options.addresses.split(",")]
    ring = Ring(int(os.environ["RANK"]), [(host, int(port)) for host, port in addresses])
    train(ring, options)


if __name__ == "__main__":
    main()
