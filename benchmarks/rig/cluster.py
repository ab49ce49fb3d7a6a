"""One cluster of the rig: its nodes with an exporter each, and its training job."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from servers.process import Process

from benchmarks.rig.installation import SLOWRANK, Installation
from benchmarks.rig.network import FABRIC, Node, small_disk

RANKS_PER_NODE = 2
_PORT = 29500
# A rank of a cluster has cores to itself: here it goes before whatever else the machine runs.
_RANK_NICENESS = -15
# Room for SQLite's log, and soon full where something else fills it.
_SPOOL_KILOBYTES = 8192


class Ended(RuntimeError):
    """The rig ends; what waits for a cluster has to stop."""


class Cluster:
    """Nodes and job of the name ``name``; every attempt at a job has an id of its own.

    ``torch``: an interpreter that has PyTorch, for a job of DistributedDataParallel instead of numpy.
    """

    def __init__(
        self,
        name: str,
        nodes: list[Node],
        installation: Installation,
        *,
        device: float,
        torch: str | None = None,
    ) -> None:
        self.name, self.nodes, self.installation, self.device = name, nodes, installation, device
        job = "benchmarks.rig.torch_rank" if torch else "benchmarks.rig.rank"
        self._rank = [torch or sys.executable, "-m", job]
        self.ranks: list[Process] = []
        self.exporters: dict[str, Process] = {}
        self.job = ""
        self.processor_share = 0.0
        self.ending = threading.Event()

    @property
    def world_size(self) -> int:
        return RANKS_PER_NODE * len(self.nodes)

    def node_of(self, rank: int) -> Node:
        return self.nodes[rank // RANKS_PER_NODE]

    def spool(self, node: Node) -> Path:
        return self.installation.home / f"spool-{node.name}"

    @contextmanager
    def up(self) -> Iterator[None]:
        """Make the nodes and start their exporters."""
        with ExitStack() as stack:
            for node in self.nodes:
                stack.enter_context(node.up())
                stack.enter_context(small_disk(self.spool(node), kilobytes=_SPOOL_KILOBYTES))
                self.start_exporter(node)
                stack.callback(self.stop_exporter, node)
            yield

    def start_exporter(self, node: Node, *wrapper: str) -> None:
        """Start the exporter of a node, through the command ``wrapper`` where one is given."""
        options = ["--cluster", self.name, "--node", node.name, "--spool", str(self.spool(node))]
        argv = node.command(*wrapper, *SLOWRANK, "exporter", "run", *options)
        self.exporters[node.name] = self.installation.spawn(argv, f"exporter-{node.name}.log")

    def stop_exporter(self, node: Node) -> None:
        """End the exporter of a node."""
        self.exporters[node.name].stop(seconds=15)

    @contextmanager
    def training(self, job: str, *, isolated: bool = True, extra: float = 0.1) -> Iterator[None]:
        """Run the job ``job`` on all nodes; ``extra``: seconds that slow user code adds to a step."""
        self.job = job
        addresses = ",".join(
            f"{self.node_of(rank).address}:{_PORT + rank}" for rank in range(self.world_size)
        )
        options = ["--addresses", addresses, "--device", str(self.device), "--extra", str(extra)]
        argv = [*self._rank, *options]
        self.ranks = []
        try:
            for rank in range(self.world_size):
                identity = {
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank % RANKS_PER_NODE),
                    "WORLD_SIZE": str(self.world_size),
                    "SLOWRANK_JOB_ID": job,
                    "GLOO_SOCKET_IFNAME": FABRIC,
                }
                log = f"{job}-rank{rank}.log"
                process = self.installation.spawn(self.node_of(rank).command(*argv), log, identity)
                self.ranks.append(process)
                if isolated:
                    os.setpriority(os.PRIO_PROCESS, process.pid, _RANK_NICENESS)
            yield
        finally:
            for process in self.ranks:
                process.send(signal.SIGKILL)
            for process in self.ranks:
                with suppress(ChildProcessError):
                    wait(lambda gone=process: not gone.alive(), seconds=10)  # type: ignore[misc]

    def wait(self, condition: Callable[[], bool], *, seconds: float, pause: float = 0.2) -> bool:
        """Call ``wait``, but raise ``Ended`` once ``ending`` is set: threads receive no signals."""

        def held() -> bool:
            if self.ending.is_set():
                raise Ended(self.name)
            return condition()

        return wait(held, seconds=seconds, pause=pause)

    def ended_rank(self) -> int | None:
        """Return the first rank whose process has ended, if any."""
        return next((rank for rank, process in enumerate(self.ranks) if not process.alive()), None)

    def measure_processor_use(self, rank: int, seconds: float = 2.0) -> None:
        """Measure for some steps which share of a processor a rank uses: ``processor_share``."""
        before = self._processor_seconds(rank)
        time.sleep(seconds)
        self.processor_share = (self._processor_seconds(rank) - before) / seconds

    def _processor_seconds(self, rank: int) -> float:
        """Return how long a rank has run on a processor (the kernel's sched-stats)."""
        return int(Path(f"/proc/{self.ranks[rank].pid}/schedstat").read_text().split()[0]) / 1e9


def wait(condition: Callable[[], bool], *, seconds: float, pause: float = 0.2) -> bool:
    """Poll ``condition`` for at most ``seconds``; return whether it came to hold."""
    deadline = time.monotonic() + seconds
    while not (held := condition()) and time.monotonic() < deadline:
        time.sleep(pause)
    return held
