"""Faults that are really made, each on one rank or node of a running job, and what counts as finding them."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from servers.process import Process

from benchmarks.rig.cgroup import cpu_quota
from benchmarks.rig.cluster import Cluster
from benchmarks.rig.network import run
from benchmarks.rig.relay import relayed

# Of what the rank uses, in microseconds of wall time. The rank waits most of a step, and its step then takes
# some four times as long as its work.
_QUOTA_SHARE, _QUOTA_PERIOD = 0.25, 1_000_000
# More than the minute from which workers measure clocks by when records come.
_CLOCK_AHEAD = "+90s"

Make = Callable[[Cluster, int], AbstractContextManager[None]]
"""Makes the fault on a rank, or on its node, for as long as the context lasts."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: how it is made, which kinds of findings name it, and by when.

    ``unit`` is what must be named: ``rank``, ``node`` (also by one of its devices), or ``job`` where machines
    cannot be told apart. ``within`` is in seconds until the finding is stored, or, with ``steps``, in steps
    of the job by event time: transport takes seconds however long steps are.
    """

    name: str
    make: Make
    unit: str
    kinds: frozenset[str]
    within: float
    steps: bool = False
    meaning: str = ""


def _signalled(number: signal.Signals, undo: signal.Signals | None = None) -> Make:
    @contextmanager
    def make(cluster: Cluster, rank: int) -> Iterator[None]:
        cluster.ranks[rank].send(number)
        try:
            yield
        finally:
            if undo is not None:
                cluster.ranks[rank].send(undo)

    return make


@contextmanager
def _throttled(cluster: Cluster, rank: int) -> Iterator[None]:
    """Stop a rank for 30 ms of every 100, as a thermal limit or a hypervisor does."""
    stop = threading.Event()
    thread = threading.Thread(target=_duty_cycle, args=(cluster.ranks[rank], stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        cluster.ranks[rank].send(signal.SIGCONT)


def _duty_cycle(process: Process, stop: threading.Event) -> None:
    """Stop the process most of the time: what it computes and what it sleeps begins late by as much."""
    while not stop.wait(0.02):
        process.send(signal.SIGSTOP)
        time.sleep(0.15)
        process.send(signal.SIGCONT)


@contextmanager
def _quota(cluster: Cluster, rank: int) -> Iterator[None]:
    # No less than the kernel takes.
    allowed = max(1000, int(_QUOTA_SHARE * cluster.processor_share * _QUOTA_PERIOD))
    with cpu_quota(cluster.ranks[rank].pid, microseconds=allowed, period=_QUOTA_PERIOD):
        yield


@contextmanager
def _link_down(cluster: Cluster, rank: int) -> Iterator[None]:
    """Take the carrier of a node's fabric link for 2 s: the switch's port goes down."""
    port = cluster.node_of(rank).port
    run("ip", "link", "set", port, "down")
    time.sleep(2.0)
    run("ip", "link", "set", port, "up")
    yield


@contextmanager
def _slow_link(cluster: Cluster, rank: int) -> Iterator[None]:
    """Limit what a node receives over its fabric link to 4 Mbit/s (token bucket, tc-tbf)."""
    port = cluster.node_of(rank).port
    run("tc", "qdisc", "add", "dev", port, "root", "tbf", "rate", "4mbit", "burst", "16kb", "latency", "2s")
    try:
        yield
    finally:
        run("tc", "qdisc", "del", "dev", port, "root")


def _relay(*, delay: float = 0.0, loss: float = 0.0) -> Make:
    @contextmanager
    def make(cluster: Cluster, rank: int) -> Iterator[None]:
        with relayed(cluster.node_of(rank).port, "fabric", delay=delay, loss=loss):
            yield

    return make


@contextmanager
def _frozen_exporter(cluster: Cluster, rank: int) -> Iterator[None]:
    exporter = cluster.exporters[cluster.node_of(rank).name]
    exporter.send(signal.SIGSTOP)
    try:
        yield
    finally:
        exporter.send(signal.SIGCONT)


@contextmanager
def _clock_ahead(cluster: Cluster, rank: int) -> Iterator[None]:
    """Restart the exporter of a node under a clock that is ahead: namespaces share that of the machine."""
    node = cluster.node_of(rank)
    cluster.stop_exporter(node)
    # The monotonic clock of a node whose date is wrong is right.
    cluster.start_exporter(node, "env", "FAKETIME_DONT_FAKE_MONOTONIC=1", "faketime", "-f", _CLOCK_AHEAD)
    try:
        yield
    finally:
        cluster.stop_exporter(node)
        cluster.start_exporter(node)


@contextmanager
def _full_disk(cluster: Cluster, rank: int) -> Iterator[None]:
    filler = cluster.spool(cluster.node_of(rank)) / "filler"
    _fill(filler)
    try:
        yield
    finally:
        filler.unlink()


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError:
            return


_HANG = frozenset({"hang.job", "hang.rank_missing"})
_SLOW = frozenset({"straggler.fail_slow", "straggler.intermittent"})
_LINK = frozenset(
    {
        "link.nic_slow",
        "link.nic_flap",
        "link.nic_errors",
        "link.tcp_loss",
        "link.tcp_delay",
        "straggler.job_wide",
        "straggler.fail_slow",
    }
)

FAULTS = {
    fault.name: fault
    for fault in (
        Fault(
            "sigstop",
            _signalled(signal.SIGSTOP, signal.SIGCONT),
            "rank",
            _HANG,
            30.0,
            meaning="a rank is stopped (SIGSTOP)",
        ),
        Fault("kill", _signalled(signal.SIGKILL), "rank", _HANG, 30.0, meaning="a rank dies (SIGKILL)"),
        Fault(
            "stuck",
            _signalled(signal.SIGUSR2),
            "rank",
            _HANG,
            30.0,
            meaning="user code of a rank does not return",
        ),
        Fault(
            "slow",
            _signalled(signal.SIGUSR1, signal.SIGUSR1),
            "rank",
            _SLOW,
            10.0,
            steps=True,
            meaning="user code of a rank sleeps a quarter of a step",
        ),
        Fault(
            "throttle",
            _throttled,
            "rank",
            _SLOW,
            10.0,
            steps=True,
            meaning="a rank is stopped time and again",
        ),
        Fault(
            "quota",
            _quota,
            "rank",
            _SLOW,
            10.0,
            steps=True,
            meaning="a CPU quota of a quarter of its use (cgroup)",
        ),
        Fault(
            "flap",
            _link_down,
            "node",
            frozenset({"link.nic_flap"}),
            30.0,
            meaning="the fabric link of a node is down for 2 s",
        ),
        Fault("link-rate", _slow_link, "node", _LINK, 60.0, meaning="the link of a node carries 4 Mbit/s"),
        Fault("link-delay", _relay(delay=0.02), "node", _LINK, 60.0, meaning="20 ms more on a node's link"),
        Fault(
            "link-loss", _relay(loss=0.05), "node", _LINK, 60.0, meaning="5 % of a link's packets are lost"
        ),
        Fault(
            "frozen-exporter",
            _frozen_exporter,
            "node",
            frozenset({"exporter.stale"}),
            30.0,
            meaning="an exporter is stopped (SIGSTOP)",
        ),
        Fault(
            "clock",
            _clock_ahead,
            "node",
            frozenset({"host.clock_skew"}),
            30.0,
            meaning="the clock of an exporter is 90 s ahead (libfaketime)",
        ),
        Fault(
            "full-disk",
            _full_disk,
            "node",
            frozenset({"exporter.stale", "exporter.spool"}),
            60.0,
            meaning="the file system of a spool is full",
        ),
    )
}
