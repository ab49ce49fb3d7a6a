"""One rank of the job of the GPU rig: matrix products on its GPU, the mean of a gradient over gloo.

Only PyTorch and the standard library are needed. SIGUSR1 makes the rank do ``--factor`` times as many
products from the next step on, until it comes again. Each rank writes JSON lines: rank 0 how many products
make a step, and every rank its steps. A rank that loses a neighbour waits for ever, as NCCL does without its
watchdog.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

import torch
import torch.distributed

from benchmarks.rig.user_code import FOREVER_SECONDS, UserCode
from slowrank import StepTimer

_GRADIENT = 1 << 18
_TOKENS = 1024
# Before a product is timed: clocks rise within it.
_WARM_SECONDS, _CALIBRATION_SECONDS = 1.0, 0.5


class Products:
    """Products of two random square matrices on one device.

    The power that a GPU takes depends on the data: zeros would need less than what is trained on.
    """

    def __init__(self, size: int, *, cuda: bool) -> None:
        self._cuda = cuda
        place = {"device": "cuda"} if cuda else {}
        # A processor without bfloat16 units would emulate them.
        kind = torch.bfloat16 if cuda else torch.float32
        self._left, self._right = (torch.randn(size, size, **place).to(kind) for _ in range(2))
        self._product: Any = torch.empty_like(self._left)

    def run(self, count: int) -> None:
        """Make ``count`` products and wait until they are done."""
        for _ in range(count):
            torch.matmul(self._left, self._right, out=self._product)
        if self._cuda:
            torch.cuda.synchronize()

    def seconds(self) -> float:
        """Return the time of one product while no other rank computes."""
        self._repeat(_WARM_SECONDS)
        done, took = self._repeat(_CALIBRATION_SECONDS)
        return took / done

    def gradient(self) -> Any:
        """Return some of the product's numbers, in the memory of the host."""
        numbers = self._product.flatten()[:_GRADIENT]
        return numbers.float().cpu().clone()

    def _repeat(self, seconds: float) -> tuple[int, float]:
        began, done = time.perf_counter(), 0
        while time.perf_counter() < began + seconds:
            self.run(10)
            done += 10
        return done, time.perf_counter() - began


def agreed_products(work: Products, rank: int, options: argparse.Namespace) -> int:
    """Return how many products make a step, as rank 0 has measured it."""
    count = torch.zeros(1, dtype=torch.int64)
    if rank == 0:
        seconds = work.seconds()
        count[0] = max(1, round(options.step_seconds / options.sharing / seconds))
        _write({"products": int(count[0]), "size": options.size, "product_seconds": seconds})
    torch.distributed.broadcast(count, 0)
    return int(count[0])


def train(options: argparse.Namespace) -> None:
    """Train until killed."""
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    user_code = UserCode(0.0)
    meeting = f"tcp://{options.meeting}"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)
    work = Products(options.size, cuda=not options.cpu)
    count = agreed_products(work, rank, options)
    gpu = {} if options.gpu is None else {"gpu_index": options.gpu}
    timer = StepTimer(coords={"dp": rank}, **gpu)
    step = 0
    try:
        while True:
            with timer.step(step, tokens=_TOKENS):
                with timer.phase("compute"):
                    began = time.perf_counter()
                    work.run(round(count * options.factor) if user_code.slow else count)
                    gradient = work.gradient()
                    user_code.run()
                    seconds = time.perf_counter() - began
                with timer.phase("wait"):
                    torch.distributed.barrier()
                with timer.phase("comm"):
                    torch.distributed.all_reduce(gradient)
            _write({"step": step, "at": time.time(), "compute_seconds": seconds})
            step += 1
    except RuntimeError as error:
        if step == 0:
            raise
        print(error, flush=True)
        time.sleep(FOREVER_SECONDS)


def _write(entry: dict[str, object]) -> None:
    print(json.dumps(entry), flush=True)


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--meeting", required=True, help="host:port where the ranks meet")
    parser.add_argument("--size", type=int, required=True, help="rows of a matrix")
    parser.add_argument("--sharing", type=float, required=True, help="ranks on one device")
    parser.add_argument("--step-seconds", type=float, required=True, help="a step, of all ranks together")
    parser.add_argument("--factor", type=float, default=2.0, help="of the products, after SIGUSR1")
    parser.add_argument("--gpu", type=int, help="index of the GPU by NVML, for the training hook")
    parser.add_argument("--cpu", action="store_true", help="compute on the processor")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
