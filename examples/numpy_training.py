"""Synchronous data-parallel training in real processes, with nothing but numpy.

Every rank is a process which fits the same small network to its own share of the data; gradients are
averaged through shared memory behind a barrier after every step, so that the slowest rank sets the pace of
all, as on a real cluster. Three lines of the training hook (marked "hook") time it.

    python examples/numpy_training.py --ranks 4 --seconds 60
    python examples/numpy_training.py --ranks 4 --seconds 120 --slow-rank 2 --slow-after 40

As the process of a GPU rank queues work for its device and waits for it, a rank waits until the time that
its device takes for a step is over: what its process computes meanwhile shows only when it takes longer.

The slowdown is real: a neighbour takes the rank's processor away. ``--slow-with throttle`` (the default)
stops the rank whenever it ran, in proportion, as a hypervisor or a thermal limit does, and slows only this
rank however few cores there are; ``--slow-with burner`` runs a busy process beside it on the same core, for
machines with a core per rank and a pace of 1.
"""

import argparse
import contextlib
import itertools
import multiprocessing
import os
import signal
import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from slowrank import StepTimer

Floats = npt.NDArray[np.float32]

LAYERS = (64, 192, 192, 1)
BATCH = 320
# Chosen: the mean of 50 evens out scheduler jitter and takes about a second at most.
TRIAL_MICRO_BATCHES = 50
# Chosen: a rank that is 100 times too slow still arrives; a dead one ends the job.
BARRIER_SECONDS = 120.0
# How often the throttle checks what its victim ran: below the time slice of a Linux scheduler (some ms).
THROTTLE_SECONDS = 0.001


@dataclass(frozen=True)
class Options:
    """One run: its size, its length, and which rank is slowed, from when, by how much."""

    ranks: int
    steps: int
    seconds: float
    micro_batches: int
    pace: float
    idle: float
    isolate: bool
    job: str
    slow_rank: int | None
    slow_after: float
    slow_factor: float
    slow_with: str


class Network:
    """A multilayer perceptron with tanh units; all parameters live in one flat vector."""

    def __init__(self, rng: np.random.Generator) -> None:
        shapes = list(itertools.pairwise(LAYERS))
        self.flat = np.concatenate(
            [(rng.standard_normal(i * o) / np.sqrt(i)).astype(np.float32) for i, o in shapes]
        )
        ends = np.cumsum([i * o for i, o in shapes])
        starts = np.concatenate([[0], ends[:-1]])
        self.views = [self.flat[a:b].reshape(s) for a, b, s in zip(starts, ends, shapes, strict=True)]

    def gradient(self, x: Floats, y: Floats) -> tuple[Floats, float]:
        """Return the gradient of the mean squared error over the batch, and the error."""
        activations = [x]
        for weights in self.views[:-1]:
            activations.append(np.tanh(activations[-1] @ weights))
        error = activations[-1] @ self.views[-1] - y
        delta = (2.0 / len(x)) * error
        gradients: list[Floats] = []
        for weights, inputs in zip(reversed(self.views), reversed(activations), strict=True):
            gradients.append((inputs.T @ delta).ravel())
            delta = (delta @ weights.T) * (np.float32(1.0) - inputs**2)
        flat: Floats = np.concatenate(gradients[::-1])
        return flat, float(np.mean(error**2))


def teacher(x: Floats) -> Floats:
    """Return what the network is to learn."""
    y: Floats = np.sin(x[:, :1]) + np.float32(0.5) * np.sin(2 * x[:, 1:2]) * x[:, 2:3]
    return y


def train(rank: int, options: Options, gradients: Any, barrier: Barrier, report: Connection) -> None:
    """Run one rank: train until the time or the number of steps is over, then report compute times."""
    rng = np.random.default_rng(rank)
    network = Network(np.random.default_rng(0))
    shared = np.frombuffer(gradients, dtype=np.float32).reshape(2, options.ranks, network.flat.size + 2)
    timer = StepTimer(
        job_id=options.job, rank=rank, local_rank=rank, world_size=options.ranks, coords={"dp": rank}
    )  # hook
    times: list[tuple[float, float, float]] = []
    step, stop, loss = 0, False, float("nan")
    usual = options.micro_batches * micro_batch_seconds(rank, network, rng, shared[1], barrier)
    device_seconds = options.pace * usual
    deadline = time.monotonic() + options.seconds
    while not stop:
        with timer.step(step, tokens=BATCH * options.micro_batches):  # hook
            began = time.perf_counter()
            with timer.phase("compute"):
                total, loss = accumulate(network, [load(rng) for _ in range(options.micro_batches)])
                time.sleep(max(0.0, began + device_seconds - time.perf_counter()))
            computed = time.perf_counter() - began
            # Two sets of slots in turn, so that no rank overwrites a slot which another one still reads.
            slots = shared[step % 2]
            with timer.phase("comm"):
                slots[rank, :-2] = total
                slots[rank, -2:] = loss, float(time.monotonic() > deadline)
            with timer.phase("wait"):
                barrier.wait(BARRIER_SECONDS)
            with timer.phase("comm"):
                mean = slots.mean(axis=0)
            with timer.phase("compute"):
                network.flat -= 0.01 * mean[:-2]
            timer.note(loss=float(mean[-2]))  # hook
        times.append((time.monotonic(), computed, float(mean[-2])))
        step += 1
        # Every rank reads the same numbers, so all stop at the same step.
        stop = mean[-1] > 0 or step == options.steps
        time.sleep(options.idle)
    timer.close()
    report.send(times)
    report.close()


def micro_batch_seconds(
    rank: int, network: Network, rng: np.random.Generator, slots: Floats, barrier: Barrier
) -> float:
    """Return the seconds per micro-batch while all ranks compute at once: the same number on every rank.

    A machine with fewer cores than ranks takes longer. Step times in proportion to it leave idle CPU on any
    machine; without it, ranks that queue for cores vary so much that they hide the slowed one.
    """
    barrier.wait(BARRIER_SECONDS)
    began = time.perf_counter()
    for _ in range(TRIAL_MICRO_BATCHES):
        accumulate(network, [load(rng)])
    slots[rank, -1] = (time.perf_counter() - began) / TRIAL_MICRO_BATCHES
    barrier.wait(BARRIER_SECONDS)
    return float(slots[:, -1].max())


def load(rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Return one micro-batch of this rank's share of the data."""
    x = rng.standard_normal((BATCH, LAYERS[0]), dtype=np.float32)
    return x, teacher(x)


def accumulate(network: Network, batches: list[tuple[Floats, Floats]]) -> tuple[Floats, float]:
    """Return the mean gradient and error over the micro-batches."""
    total, errors = np.zeros_like(network.flat), []
    for x, y in batches:
        gradient, error = network.gradient(x, y)
        total += gradient / len(batches)
        errors.append(error)
    return total, statistics.fmean(errors)


def throttle(pid: int, share: float, stop: threading.Event) -> None:
    """Let process ``pid`` run at most ``share`` of the time, until ``stop``."""
    try:
        ran = processor_seconds(pid)
        while not stop.wait(THROTTLE_SECONDS):
            before, ran = ran, processor_seconds(pid)
            if ran > before:
                os.kill(pid, signal.SIGSTOP)
                time.sleep((ran - before) * (1 / share - 1))
                os.kill(pid, signal.SIGCONT)
    except (ProcessLookupError, FileNotFoundError):
        return
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def processor_seconds(pid: int) -> float:
    """Return how long process ``pid`` has run on a processor (the kernel's sched-stats)."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def burn(core: int) -> None:
    """Keep one core busy until killed."""
    os.sched_setaffinity(0, {core})
    while True:
        sum(i * i for i in range(10_000))


def healthy_cpu_share(victim: BaseProcess, seconds: float) -> float:
    """Wait ``seconds``; return the CPU share of ``victim`` in their second half (1.0: one full core).

    Raises ``SystemExit`` when it ends before that.
    """
    assert victim.pid is not None
    victim.join(seconds / 2)  # the first half contains the start-up of the process
    if victim.is_alive():
        began, ran = time.monotonic(), processor_seconds(victim.pid)
        victim.join(seconds / 2)
        if victim.is_alive():
            return (processor_seconds(victim.pid) - ran) / (time.monotonic() - began)
    raise SystemExit(f"the job ended before --slow-after {seconds:g}: train longer, or slow it down earlier")


@contextlib.contextmanager
def slowdown(victim: BaseProcess, options: Options) -> Iterator[None]:
    """Measure the CPU share of ``victim`` while it is healthy, then slow it down within the block."""
    assert victim.pid is not None
    share = healthy_cpu_share(victim, options.slow_after)
    print(f"slowing rank {options.slow_rank} (pid {victim.pid}) with a {options.slow_with}", flush=True)
    if options.slow_with == "burner":
        core = min(os.sched_getaffinity(victim.pid))
        os.sched_setaffinity(victim.pid, {core})
        burner = multiprocessing.get_context("spawn").Process(target=burn, args=(core,), daemon=True)
        burner.start()
        try:
            yield
        finally:
            burner.kill()
            burner.join()
        return
    stop = threading.Event()
    thread = threading.Thread(target=throttle, args=(victim.pid, share / options.slow_factor, stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def launch(options: Options) -> list[list[tuple[float, float, float]]]:
    """Run the job; return per rank (monotonic time, compute seconds, loss) of every step."""
    # One thread per rank, set before the ranks load numpy: parallel BLAS threads would compete for cores.
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    if options.isolate:
        isolate()
    context = multiprocessing.get_context("spawn")
    size = Network(np.random.default_rng(0)).flat.size + 2
    gradients = context.RawArray("f", 2 * options.ranks * size)
    barrier = context.Barrier(options.ranks)
    pipes = [context.Pipe(duplex=False) for _ in range(options.ranks)]
    workers = [
        context.Process(target=train, args=(rank, options, gradients, barrier, pipes[rank][1]))
        for rank in range(options.ranks)
    ]
    for worker in workers:
        worker.start()
    try:
        with contextlib.ExitStack() as stack:
            if options.slow_rank is not None:
                stack.enter_context(slowdown(workers[options.slow_rank], options))
            return [receive(pipes[rank][0], workers[rank]) for rank in range(options.ranks)]
    finally:
        for worker in workers:
            worker.join(5.0)
            worker.kill()


def isolate() -> None:
    """Give this process and its children real-time priority (SCHED_FIFO), where permitted.

    On a cluster a rank has its cores to itself; on a shared machine the priority has the same effect.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        print("no permission for SCHED_FIFO (needs CAP_SYS_NICE); compute times will be noisier", flush=True)


def receive(pipe: Connection, worker: BaseProcess) -> list[tuple[float, float, float]]:
    """Return the report of one rank. Raises ``SystemExit`` when it ended without one."""
    while not pipe.poll(0.5):
        if not worker.is_alive() and not pipe.poll(0):
            raise SystemExit(f"{worker.name} ended with status {worker.exitcode} before the job was done")
    times: list[tuple[float, float, float]] = pipe.recv()
    return times


def summarise(reports: list[list[tuple[float, float, float]]], options: Options) -> None:
    """Print loss, pace and each rank's compute time."""
    first = reports[0]
    pace = (first[-1][0] - first[0][0]) / max(1, len(first) - 1)
    print(f"{len(first)} steps, {1000 * pace:.1f} ms each, loss {first[0][2]:.4f} -> {first[-1][2]:.4f}")
    changed = first[0][0] + options.slow_after
    for rank, times in enumerate(reports):
        parts = [("compute", [seconds for _, seconds, _ in times])]
        if options.slow_rank is not None:
            parts = [
                ("before", [seconds for at, seconds, _ in times if at < changed]),
                ("after", [seconds for at, seconds, _ in times if at >= changed + 1.0]),
            ]
        print(f"rank {rank}: " + "   ".join(f"{name} {spread(held)}" for name, held in parts if held))


def spread(seconds: list[float]) -> str:
    """Return the median and the quartiles in milliseconds."""
    low, middle, high = np.percentile(np.array(seconds) * 1000, [25, 50, 75])
    return f"{middle:.2f} ms [{low:.2f}, {high:.2f}]"


def options_of(arguments: list[str] | None = None) -> Options:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=0, help="0: as many as fit into --seconds")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--micro-batches", type=int, default=4, help="work per step and rank")
    parser.add_argument(
        "--pace",
        type=float,
        default=6.0,
        help="device time per micro-batch, as a multiple of the measured CPU time",
    )
    parser.add_argument("--idle", type=float, default=0.03, help="seconds between steps")
    parser.add_argument("--isolate", action="store_true", help="real-time priority, where permitted")
    parser.add_argument("--job", default="numpy-training")
    parser.add_argument("--slow-rank", type=int, default=None)
    parser.add_argument("--slow-after", type=float, default=30.0, help="healthy seconds first")
    parser.add_argument("--slow-factor", type=float, default=2.0, help="its steps take FACTOR times as long")
    parser.add_argument("--slow-with", choices=("throttle", "burner"), default="throttle")
    given = vars(parser.parse_args(arguments))
    options = Options(**given)
    if options.ranks < 1:
        parser.error("--ranks must be at least 1")
    if options.slow_rank is not None:
        if not 0 <= options.slow_rank < options.ranks:
            parser.error(f"--slow-rank must be one of the ranks, 0 to {options.ranks - 1}")
        if options.slow_after <= 0.0:
            parser.error("--slow-after must be above 0: the rank's CPU share is measured while it is healthy")
        if options.slow_after >= options.seconds:
            parser.error(
                f"--slow-after {options.slow_after:g} must be below --seconds {options.seconds:g}: "
                "the job ends before the rank is slowed"
            )
        if options.slow_factor <= 1.0:
            parser.error("--slow-factor must be above 1")
    return options


if __name__ == "__main__":
    chosen = options_of()
    summarise(launch(chosen), chosen)
