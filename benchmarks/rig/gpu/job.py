"""The training job of the GPU rig: its ranks as processes, and the steps that their logs tell of."""

from __future__ import annotations

import json
import os
import signal
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servers.process import Process, free_ports

from benchmarks.rig.cluster import wait
from benchmarks.rig.command import NotTraining, check_torch, last_line
from benchmarks.rig.gpu.host import NotStarted, environment

NAME = "gpu-job"
_START_SECONDS, _END_SECONDS = 90.0, 10.0
# What all ranks compute in a step, together on one device.
STEP_SECONDS = 0.2

_PROBE = """
import json, torch, torch.distributed as d
cuda = torch.cuda.is_available()
print(json.dumps({
    "torch": torch.__version__, "cuda": torch.version.cuda, "distributed": d.is_available(),
    "devices": torch.cuda.device_count() if cuda else 0,
    "name": torch.cuda.get_device_name(0) if cuda else None,
}))
"""


class NoGpu(RuntimeError):
    """There is no GPU or no PyTorch for it; the message says which, and what to do."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step of one rank: its number, the Unix time of its end, and the seconds of its compute phase."""

    number: int
    at: float
    compute_seconds: float


@dataclass(frozen=True, slots=True)
class Work:
    """A rank's part of a step: products of matrices of ``size`` rows, and the seconds of one by itself."""

    products: int
    size: int
    product_seconds: float

    @property
    def operations(self) -> float:
        """Floating-point operations."""
        return self.products * 2.0 * self.size**3


@dataclass(frozen=True, slots=True)
class Plan:
    """A job to be: interpreter and number of its ranks, devices (0: the processor), rows of a matrix.

    A rank that is made slow does ``factor`` times as many products.
    """

    python: str
    ranks: int
    devices: int
    size: int
    factor: float

    @property
    def sharing(self) -> float:
        """Ranks that compute on one device, or on one core of the processor."""
        places = self.devices or os.cpu_count() or 1
        return max(1.0, self.ranks / places)


def check(python: str, *, cpu: bool) -> dict[str, Any]:
    """Return PyTorch's version and devices as the interpreter ``python`` finds them. Raises ``NoGpu``."""
    try:
        printed = check_torch(python, _PROBE, **environment())
    except NotTraining as error:
        raise NoGpu(str(error)) from error
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    if not found["distributed"]:
        raise NoGpu(f"PyTorch {found['torch']} has no torch.distributed: install a build that has, for gloo")
    if not cpu and not found["devices"]:
        build = f"CUDA {found['cuda']}" if found["cuda"] else "a build without CUDA"
        raise NoGpu(
            f"PyTorch {found['torch']} ({build}) finds no GPU: does `nvidia-smi` list one, and is it in "
            "CUDA_VISIBLE_DEVICES? Without a GPU --cpu tries the rig itself"
        )
    return found


class Job:
    """A running job and the logs of its ranks in ``home``."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.ranks: list[Process] = []

    def log(self, rank: int) -> Path:
        """Return the log of a rank."""
        return self._home / f"{NAME}-rank{rank}.log"

    def steps(self, rank: int = 0) -> list[Step]:
        """Return the steps that a rank has made."""
        return steps_in(_text(self.log(rank)))

    def work(self) -> Work:
        """Return what a rank does in a step."""
        return work_in(_text(self.log(0)))

    def ended(self) -> int | None:
        """Return the first rank whose process has ended, if any."""
        return next((rank for rank, process in enumerate(self.ranks) if not process.alive()), None)

    def check(self) -> None:
        """Raise ``NotStarted`` where a rank has ended."""
        rank = self.ended()
        if rank is not None:
            log = self.log(rank)
            raise NotStarted(f"rank {rank} ended; the last line of {log}: {last_line(log)}")

    def wait_for_steps(self, count: int, seconds: float = _START_SECONDS) -> None:
        """Wait until rank 0 has made so many steps. Raises ``NotStarted``."""
        wait(lambda: len(self.steps()) >= count or self.ended() is not None, seconds=seconds)
        self.check()
        if len(self.steps()) < count:
            last = last_line(self.log(0))
            raise NotStarted(f"no {count} steps in {seconds:.0f} s; the last line of {self.log(0)}: {last}")


@contextmanager
def training(plan: Plan, exporter: str, home: Path) -> Iterator[Job]:
    """Run the ranks of a job; their training hooks send to the address ``exporter``."""
    job = Job(home)
    meeting = f"127.0.0.1:{free_ports(1)[0]}"
    options = ["--meeting", meeting, "--size", str(plan.size), "--sharing", str(plan.sharing)]
    options += ["--step-seconds", str(STEP_SECONDS), "--factor", str(plan.factor)]
    try:
        for rank in range(plan.ranks):
            job.log(rank).unlink(missing_ok=True)
            place, environ = _place(plan, rank)
            env = environment(
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                WORLD_SIZE=str(plan.ranks),
                SLOWRANK_JOB_ID=NAME,
                SLOWRANK_EXPORTER=exporter,
                # The name of the host may have no address.
                GLOO_SOCKET_IFNAME="lo",
                OMP_NUM_THREADS="1",
                **environ,
            )
            command = [plan.python, "-m", "benchmarks.rig.gpu.rank", *options, *place]
            job.ranks.append(Process.spawn(command, log=job.log(rank), env=env))
        yield job
    finally:
        for process in job.ranks:
            process.send(signal.SIGKILL)
        for process in job.ranks:
            with suppress(ChildProcessError):
                wait(lambda gone=process: not gone.alive(), seconds=_END_SECONDS)  # type: ignore[misc]


def _place(plan: Plan, rank: int) -> tuple[list[str], dict[str, str]]:
    """Return options and environment that put a rank on its device: in turn, in the order of NVML."""
    if not plan.devices:
        return ["--cpu"], {}
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    names = visible[: plan.devices] or [str(index) for index in range(plan.devices)]
    name = names[rank % len(names)]
    # A name that is no index is a UUID, which the hook does not need to be told of.
    known = ["--gpu", name] if name.isdecimal() else []
    return known, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": name}


def steps_in(text: str) -> list[Step]:
    """Return the steps in the log of a rank; pure."""
    return [Step(entry["step"], entry["at"], entry["compute_seconds"]) for entry in _entries(text, "step")]


def work_in(text: str) -> Work:
    """Return the work that rank 0 measured; pure."""
    entry = next(_entries(text, "products"))
    return Work(entry["products"], entry["size"], entry["product_seconds"])


def _entries(text: str, key: str) -> Iterator[dict[str, Any]]:
    # The last line may be half written, and warnings of PyTorch stand between.
    for line in text.rpartition("\n")[0].splitlines():
        if line.startswith(f'{{"{key}"'):
            yield json.loads(line)


def between(steps: Sequence[Step], begin: float, end: float) -> list[Step]:
    """Return the steps that ended in a span of Unix time; pure."""
    return [step for step in steps if begin < step.at <= end]


def compute_median(steps: Sequence[Step]) -> float | None:
    """Return the median of the compute phases, None without steps; pure."""
    return statistics.median(step.compute_seconds for step in steps) if steps else None


def _text(log: Path) -> str:
    return log.read_text(errors="replace") if log.exists() else ""
