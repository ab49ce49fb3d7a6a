"""PyTorch DistributedDataParallel on CPU (gloo), timed by the training hook.

    torchrun --nproc-per-node 4 examples/torch_ddp.py --steps 500

The hook reads its identity from RANK, LOCAL_RANK and WORLD_SIZE, which torchrun sets; the lines marked "hook"
are the only additions to the training script. DDP's all-reduce runs inside ``backward``: a communication hook
times it, so that waiting for others does not count as this rank's own work.
"""

import argparse
import sys

from slowrank import StepTimer

try:
    import torch
    import torch.distributed
    from torch.nn.parallel import DistributedDataParallel
except ImportError:
    print("this example needs PyTorch: pip install torch (the CPU build will do)", file=sys.stderr)
    sys.exit(2)


def main() -> int:
    """Train; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=256)
    options = parser.parse_args()

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(torch.distributed.get_rank())
    layers = torch.nn.Sequential(torch.nn.Linear(64, 192), torch.nn.Tanh(), torch.nn.Linear(192, 1))
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    timer = StepTimer(coords={"dp": torch.distributed.get_rank()})  # hook
    model.register_comm_hook(timer, timed_all_reduce)  # hook

    for _ in range(options.steps):
        with timer.step(tokens=options.batch):  # hook
            with timer.phase("data"):  # hook
                x = torch.randn(options.batch, 64)
                y = torch.sin(x[:, :1])
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            timer.note(loss=loss.item())  # hook; on a GPU note the loss where it is read anyway
    print(f"rank {torch.distributed.get_rank()}: loss {loss.item():.4f}")
    torch.distributed.destroy_process_group()
    return 0


# DDP checks these annotations when the hook is registered.
def timed_all_reduce(
    timer: StepTimer, bucket: torch.distributed.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Average one bucket of gradients and wait for it, in the step's wait phase."""
    with timer.phase("wait"):
        gradients = bucket.buffer().div_(torch.distributed.get_world_size())
        torch.distributed.all_reduce(gradients)
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(gradients)
    return done


if __name__ == "__main__":
    sys.exit(main())
