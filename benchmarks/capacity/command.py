"""How many nodes one machine sustains with everything on it: Kafka, TimescaleDB, workers, API and notifier.

The telemetry of a fleet of 8-GPU nodes at one sample a second, with the steps of all ranks, is recorded first
and then sent as it would come from as many exporters: a request for each record. Meanwhile a GPU is lost
(XID 79) again and again, and a receiver waits for its webhook and verifies the signature. A fleet is
sustained when no group falls behind, every webhook comes in time, and every record sent was stored and read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.capacity.installation import Installation, installed
from benchmarks.capacity.load import Load, record
from benchmarks.capacity.usage import Usage, usage
from slowrank.telemetry.topics import JOB_STEPS, NODE_EVENTS, NODE_SAMPLES
from streams.runtime.faust_app import READS, Role
from streams.runtime.kafka.offsets import Probe

ROLES: tuple[Role, ...] = ("detect", "sink")
SENT = (NODE_SAMPLES, NODE_EVENTS, JOB_STEPS)
WEBHOOK_SECONDS = 10.0

# By how much a group may be further behind at the end of the run than at its beginning, by a straight line
# through all looks. Chosen: less than one look differs from the next, because rows are stored once a bucket
# of ten seconds has passed; of ten minutes it is 0.3 % of the load.
RISE_SECONDS = 2.0
# Not part of the figures: the baselines are learnt.
WARM_SECONDS = 120.0

_DRAIN_SECONDS = 120.0
_SAMPLE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Moment:
    """One look at the installation: the records that each group has not processed, and each role's use."""

    at: float
    lag: Mapping[str, int]
    use: Mapping[str, Usage]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One run; ``lag``: seconds of records that each group was behind; ``cores``: by role.

    Both leave out the first WARM_SECONDS.
    """

    nodes: int
    seconds: int
    records: int
    lag_median: dict[str, float]
    lag_most: dict[str, float]
    lag_rise: dict[str, float]
    cores: dict[str, float]
    memory_mb: dict[str, float]
    webhooks: int
    webhooks_expected: int
    webhook_median: float | None
    webhook_most: float | None
    lost: int
    load_late: float

    @property
    def sustained(self) -> bool:
        """Whether the installation carried the fleet."""
        told = self.webhooks == self.webhooks_expected and (self.webhook_most or 0.0) <= WEBHOOK_SECONDS
        return told and self.lost == 0 and all(rise <= RISE_SECONDS for rise in self.lag_rise.values())


def main(argv: list[str]) -> int:
    """Print the figures of one fleet; return 1 when it was not sustained."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks capacity", description=__doc__)
    parser.add_argument("--nodes", type=int, default=4000)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--home", help="folder for logs and the recorded load; a temporary one without it")
    parser.add_argument("--json", help="file for the figures")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="slowrank-capacity-") as folder:
        home = Path(options.home or folder)
        home.mkdir(parents=True, exist_ok=True)
        figures = run(home, options.nodes, options.seconds, options.partitions)
    _print(figures)
    if options.json:
        shown = {name: getattr(figures, name) for name in Figures.__slots__}
        Path(options.json).write_text(json.dumps(shown | _machine(), indent=1) + "\n")
    return int(not figures.sustained)


def run(home: Path, nodes: int, seconds: int, partitions: int) -> Figures:
    """Record the load of a fleet, start an installation, send, and return the figures."""
    file = home / "load"
    start = time.time() + _recording_seconds(file, nodes, seconds, partitions)
    load = Load(nodes=nodes, seconds=seconds, partitions=partitions, start=float(int(start)))
    count = record(load, file)
    with installed(home, partitions) as made:
        if time.time() > load.start:
            raise TimeoutError("recording the load took longer than its first second suggested; run it again")
        argv = [sys.executable, "-m", "benchmarks.capacity.load", str(file), made.bootstrap, str(load.start)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as sender:
            moments = asyncio.run(_watch(made, load, sender))
            assert sender.stdout is not None
            sent = json.loads(sender.stdout.read())
        missing = count - sent["sent"] + sent["errors"] + sum(moments[-1].lag.values())
        return _figures(load, count, moments, made.receiver.arrived, missing, sent["late"])


def _recording_seconds(file: Path, nodes: int, seconds: int, partitions: int) -> float:
    """Return how long recording takes, with a quarter more and the start of the installation."""
    began, sample = time.monotonic(), 5
    record(Load(nodes=nodes, seconds=sample, partitions=partitions, start=float(int(time.time()))), file)
    return 1.25 * (time.monotonic() - began) / sample * seconds + 40.0


async def _watch(made: Installation, load: Load, sender: subprocess.Popen[str]) -> list[Moment]:
    """Look at the installation every few seconds until everything that was sent is processed."""
    moments: list[Moment] = []
    pids = made.pids() | {"load": sender.pid}
    probe = Probe(made.bootstrap, "slowrank-detect")
    end = load.start + load.seconds
    try:
        while True:
            lag = await _lag(probe)
            moments.append(Moment(time.time(), lag, {role: usage(pid) for role, pid in pids.items()}))
            done = sender.poll() is not None and not any(lag.values())
            # Webhooks of the last seconds are still on their way.
            if (done and time.time() > end + WEBHOOK_SECONDS) or time.time() > end + _DRAIN_SECONDS:
                return moments
            await asyncio.sleep(_SAMPLE_SECONDS)
    finally:
        await probe.close()


async def _lag(probe: Probe) -> dict[str, int]:
    lag: dict[str, int] = {}
    for role in ROLES:
        ends = await probe.ends(await probe.partitions(set(READS[role]) & set(SENT)))
        committed = await probe.committed(f"slowrank-{role}")
        lag[role] = sum(end - committed.get(place, 0) for place, end in ends.items())
    return lag


def _figures(
    load: Load,
    count: int,
    moments: Sequence[Moment],
    arrived: Mapping[str, float],
    lost: int,
    late: float,
) -> Figures:
    end = load.start + load.seconds
    inside = [m for m in moments if load.start + min(WARM_SECONDS, load.seconds / 3) <= m.at <= end] or list(
        moments
    )
    rate = count / load.seconds
    lags = {role: np.array([m.lag[role] for m in inside]) / rate for role in ROLES}
    first, last = inside[0], inside[-1]
    delays = np.array(sorted(arrived[n] - at for n, at in load.onsets.items() if n in arrived))
    return Figures(
        nodes=load.nodes,
        seconds=load.seconds,
        records=count,
        lag_median={role: round(float(np.median(lag)), 2) for role, lag in lags.items()},
        lag_most={role: round(float(lag.max()), 2) for role, lag in lags.items()},
        lag_rise={role: round(_rise(lag), 2) for role, lag in lags.items()},
        cores={
            role: round((last.use[role].seconds - first.use[role].seconds) / max(1e-9, last.at - first.at), 3)
            for role in last.use
        },
        memory_mb={role: round(last.use[role].bytes / 1e6, 1) for role in last.use},
        webhooks=len(delays),
        webhooks_expected=len(load.onsets),
        webhook_median=round(float(np.median(delays)), 2) if len(delays) else None,
        webhook_most=round(float(delays[-1]), 2) if len(delays) else None,
        lost=lost,
        load_late=late,
    )


def _rise(lags: npt.NDArray[np.float64]) -> float:
    """Return last minus first value of the line of least squares through equally spaced values."""
    if len(lags) < 2:
        return 0.0
    slope, _ = np.polyfit(np.arange(len(lags)), lags, 1)
    return float(slope) * (len(lags) - 1)


def _print(figures: Figures) -> None:
    verdict = "sustained" if figures.sustained else "NOT sustained"
    print(f"{figures.nodes} nodes, {figures.seconds} s, {figures.records:,} records: {verdict}")
    print(f"the load was late by {figures.load_late} s at its end; {figures.lost} records lost or unread")
    for role in ROLES:
        lags = (lag[role] for lag in (figures.lag_median, figures.lag_most, figures.lag_rise))
        print("{:10} behind by {} s at the median, {} s at most, rising by {} s".format(role, *lags))
    for name, cores in figures.cores.items():
        share = f"{100 * cores:6.1f} % of a core {1e6 * cores / figures.nodes:8.1f} µs a node-second"
        print(f"{name:10} {share} {figures.memory_mb[name]:8.1f} MB")
    arrived = f"{figures.webhooks} of {figures.webhooks_expected}"
    print(f"webhooks   {arrived}, median {figures.webhook_median} s, at most {figures.webhook_most} s")


def _machine() -> dict[str, object]:
    return {"cpus": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()}
