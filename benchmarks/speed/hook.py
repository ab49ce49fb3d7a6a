"""CPU time of the training hook per step, and its share of a training step.

    python -m benchmarks hook

Thread CPU time of the training thread per step, median over rounds, in direct succession and with pauses as
in training. A listener receives the datagrams, as the exporter does.
"""

import argparse
import json
import socket
import statistics
import threading
import time
from collections.abc import Callable

from slowrank import StepTimer

PACED_SECONDS = 0.01


def bare(timer: StepTimer) -> None:
    with timer.step():
        pass


def with_phases(timer: StepTimer) -> None:
    with timer.step(tokens=4096):
        with timer.phase("data"):
            pass
        with timer.phase("compute"):
            pass
        with timer.phase("wait"):
            pass


def cost(step: Callable[[StepTimer], None], timer: StepTimer, *, rounds: int, steps: int) -> float:
    """Return the median CPU microseconds of the calling thread per step."""
    found = []
    for _ in range(rounds):
        began = time.thread_time()
        for _ in range(steps):
            step(timer)
        found.append((time.thread_time() - began) / steps * 1e6)
        timer.flush()
    return statistics.median(found)


def paced(timer: StepTimer, seconds: float) -> tuple[float, float]:
    """Step with pauses as in training, so that caches are cold.

    Returns the median CPU microseconds per step and the longest time in the hook.
    """
    spent: list[float] = []
    longest = 0.0
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        began, own = time.perf_counter(), time.thread_time()
        with_phases(timer)
        spent.append((time.thread_time() - own) * 1e6)
        longest = max(longest, (time.perf_counter() - began) * 1e6)
        time.sleep(PACED_SECONDS)
    return statistics.median(spent), longest


def main(argv: list[str]) -> int:
    """Print one JSON object; return the exit status."""
    parser = argparse.ArgumentParser(prog="benchmarks hook")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of the paced run")
    options = parser.parse_args(argv)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.bind(("127.0.0.1", 0))
        threading.Thread(target=_drain, args=(listener,), daemon=True).start()
        timer = StepTimer(exporter=f"127.0.0.1:{listener.getsockname()[1]}", environ={}, rank=0)
        result = {
            "step_us": round(cost(bare, timer, rounds=options.rounds, steps=options.steps), 2),
            "step_with_3_phases_us": round(
                cost(with_phases, timer, rounds=options.rounds, steps=options.steps), 2
            ),
        }
        paced_us, longest_us = paced(timer, options.seconds)
        timer.close()
    result["paced_step_with_3_phases_us"] = round(paced_us, 2)
    result["longest_hold_us"] = round(longest_us, 1)
    result["share_of_100_ms_step_percent"] = round(paced_us / 100_000 * 100, 4)
    print(json.dumps(result, indent=2))
    return 0


def _drain(listener: socket.socket) -> None:
    while True:
        try:
            listener.recv(65536)
        except OSError:
            return
