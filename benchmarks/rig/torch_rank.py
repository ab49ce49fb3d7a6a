"""One rank of a PyTorch job for the rig: DistributedDataParallel over gloo, options as of ``rank``.

Only PyTorch and the standard library are needed. The training hook and the communication hook of DDP are
those of ``examples/torch_ddp.py``, signals as of ``rank``. The first address is where the ranks meet. Gloo
ends a rank that loses a neighbour; it then waits for ever, as NCCL does without its watchdog. Before the
first step such an error ends it.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel

from benchmarks.rig.user_code import FOREVER_SECONDS, UserCode, rank_options
from examples.torch_ddp import timed_all_reduce
from slowrank import StepTimer

_BATCH, _WIDTH = 256, 192


def train(options: argparse.Namespace) -> None:
    """Train until killed."""
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    meeting = options.addresses.split(",")[0]
    torch.distributed.init_process_group("gloo", init_method=f"tcp://{meeting}", rank=rank, world_size=size)
    torch.manual_seed(rank)
    layers = torch.nn.Sequential(torch.nn.Linear(64, _WIDTH), torch.nn.Tanh(), torch.nn.Linear(_WIDTH, 1))
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    timer = StepTimer(coords={"dp": rank})
    model.register_comm_hook(timer, timed_all_reduce)
    user_code = UserCode(options.extra)
    step = 0
    try:
        while True:
            with timer.step(step, tokens=_BATCH):
                began = time.perf_counter()
                x = torch.randn(_BATCH, 64)
                loss = torch.nn.functional.mse_loss(model(x), torch.sin(x[:, :1]))
                time.sleep(max(0.0, began + options.device - time.perf_counter()))
                user_code.run()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                timer.note(loss=loss.item())
            step += 1
            if rank == 0:
                print(f"step {step}", flush=True)
    except RuntimeError as error:
        if step == 0:
            raise
        print(error, flush=True)
        time.sleep(FOREVER_SECONDS)


def main() -> None:
    """Read the command line and train."""
    train(rank_options(__doc__))


if __name__ == "__main__":
    main()
