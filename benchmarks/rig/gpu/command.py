"""``python -m benchmarks.rig.gpu``: `slowrank up` and a training job on a host with a real NVIDIA GPU.

    --ranks N         ranks of the job, shared out among the GPUs (4)
    --healthy SECONDS how long the job is healthy first (60)
    --factor X        of the products of a rank that is made slow (2)
    --torch PYTHON    the interpreter of the ranks, with PyTorch; that of the rig without it
    --home DIR        keep the logs there
    --json FILE       where the figures go (benchmarks/results/gpu.json)

Measured are: what NVML gives through the exporter's collector, idle and under load; what is found in a
healthy job; and how soon a rank is named that does more products (SIGUSR1), and one that is stopped. Ranks
on one GPU share it in time: the slow one takes longer only by what it does more. Exit status 1 when a fault
was missed, a healthy job accused or a part failed; 2 without a GPU.
SIGINT and SIGTERM end it with all its processes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.rig.cluster import wait
from benchmarks.rig.command import exit_on_signals, write
from benchmarks.rig.faults import FAULTS
from benchmarks.rig.gpu import host, job, telemetry
from benchmarks.rig.installation import ROOT
from benchmarks.rig.verdict import Doc, Target, Verdict, accuses, judge, label, names, pages
from benchmarks.rig.watch import Watch

RESULTS = ROOT / "benchmarks/results/gpu.json"

# Rows of a matrix: large enough to fill a data-centre GPU; on a processor small enough for a smoke test.
_GPU_SIZE, _CPU_SIZE = 8192, 256
_IDLE_SECONDS = 10.0
_FIRST_STEPS = 5
# Limits on the wait for a finding. A rank that did not arrive suffices after a minute, where the machine does
# not bear the hang out before (detectors.job.progress).
_SLOW_SECONDS, _STOPPED_SECONDS = 45.0, 90.0
_SETTLE_SECONDS, _RECOVER_SECONDS = 3.0, 8.0


@dataclass(slots=True)
class Report:
    """The figures by part, and why a part failed, saved after each."""

    path: Path | None
    parts: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    def run(self, name: str, part: Callable[[], dict[str, Any]]) -> bool:
        """Run a part, so that its failure is reported and others still run; return whether it ran."""
        _say(name)
        try:
            self.parts[name] = part()
            print(json.dumps({name: self.parts[name]}, indent=1, default=str), flush=True)
        # Whatever it is: a lent machine may not be had again.
        except Exception as error:
            self.errors[name] = f"{type(error).__name__}: {error}"
            _say(f"{name} failed: {self.errors[name]}")
        self.save()
        return name in self.parts

    def save(self) -> None:
        """Write what there is so far."""
        if self.path is not None:
            write(self.path, {"parts": self.parts, "errors": self.errors})

    @property
    def passed(self) -> bool:
        """Whether every part ran, no healthy rank was accused and both faults were found."""
        healthy = self.parts.get("healthy", {})
        faults = [self.parts.get(name, {}) for name in ("straggler", "stopped")]
        return (
            not self.errors
            and not healthy.get("pages", 1)
            and not healthy.get("accusing", 1)
            and all(fault.get("found") for fault in faults)
        )


class Rig:
    """The parts of a run, in the order of their methods."""

    def __init__(self, plan: job.Plan, options: argparse.Namespace, sampler: telemetry.Sampler) -> None:
        self._plan, self._healthy_seconds = plan, options.healthy
        self._sampler = sampler
        self._watch: Watch
        self._job: job.Job

    def up(self, stack: ExitStack, home: Path) -> dict[str, Any]:
        """Start `slowrank up`."""
        began = time.monotonic()
        self._host = stack.enter_context(host.running(home))
        self._watch = Watch(self._host, host.CLUSTER)
        return {"start_seconds": time.monotonic() - began}

    def idle(self) -> dict[str, Any]:
        """Let the sampler read the idle GPU."""
        time.sleep(_IDLE_SECONDS)
        return {"reads": len(self._sampler.reads)}

    def start(self, stack: ExitStack, home: Path) -> dict[str, Any]:
        """Start the job; return what a rank does in a step."""
        self._sampler.part = "start"
        began = time.monotonic()
        self._job = stack.enter_context(job.training(self._plan, self._host.exporter, home))
        self._job.wait_for_steps(_FIRST_STEPS)
        seconds = time.monotonic() - began
        return {**asdict(self._job.work()), "ranks": self._plan.ranks, "start_seconds": seconds}

    def healthy(self) -> dict[str, Any]:
        """Train without a fault; return the job's rate beside the GPU's, and what was found nevertheless."""
        self._sampler.part = "healthy"
        began = time.time()
        ends = began + self._healthy_seconds
        while time.time() < ends:
            self._job.check()
            self._watch.look()
            time.sleep(1.0)
        seconds = time.time() - began
        docs = [seen.doc for seen in self._watch.look()]
        steps = job.between(self._job.steps(), began, began + seconds)
        rate = len(steps) * self._plan.ranks * self._job.work().operations / seconds
        return {
            "seconds": seconds,
            "steps": len(steps),
            "step_seconds": seconds / max(1, len(steps)),
            "compute_seconds": self._compute_seconds(began, began + seconds),
            "pages": len(pages(docs)),
            "accusing": sum(map(accuses, docs)),
            "findings": [described(doc) for doc in docs],
            "tflops_per_gpu": rate / max(1, self._plan.devices) / 1e12,
            "gpu": telemetry.activity(self._sampler.reads, "healthy"),
        }

    def straggler(self) -> dict[str, Any]:
        """Make one rank do more products until it is named."""
        rank = min(1, self._plan.ranks - 1)
        before = self._compute_seconds(time.time() - 10.0, time.time())
        found = self._fault("slow", rank, (signal.SIGUSR1, signal.SIGUSR1), _SLOW_SECONDS, "straggler")
        after = self._compute_seconds(found["made_at"] + 1.0, found["made_at"] + found["lasted_seconds"])
        others = [seconds for other, seconds in after.items() if other != rank]
        found |= {
            "factor_of_products": self._plan.factor,
            "compute_seconds_before": before,
            "compute_seconds_after": after,
            "compute_ratio_to_before": after[rank] / before[rank],
            "compute_ratio_to_others": after[rank] * len(others) / sum(others),
        }
        # What is left of it must not be taken for the next fault.
        time.sleep(_RECOVER_SECONDS)
        return found

    def stopped(self) -> dict[str, Any]:
        """Stop one rank until the hang is found; return whether the job then goes on, too."""
        rank = self._plan.ranks - 1
        found = self._fault("sigstop", rank, (signal.SIGSTOP, signal.SIGCONT), _STOPPED_SECONDS, "stopped")
        made = len(self._job.steps())
        wait(lambda: len(self._job.steps()) > made, seconds=10.0)
        return found | {"goes_on": len(self._job.steps()) > made}

    def _fault(
        self, name: str, rank: int, signals: tuple[signal.Signals, signal.Signals], seconds: float, part: str
    ) -> dict[str, Any]:
        """Send the first signal, wait for a finding that names the rank, send the second."""
        self._job.check()
        self._watch.look()
        self._sampler.part = part
        kinds, target = FAULTS[name].kinds, Target("rank", rank, host.NODE, job.NAME)
        made_at = time.time()

        def verdict() -> Verdict:
            return judge(self._watch.look(), target, kinds, made_at=made_at)

        self._job.ranks[rank].send(signals[0])
        try:
            wait(lambda: verdict().delay_seconds is not None, seconds=seconds, pause=0.5)
            time.sleep(_SETTLE_SECONDS)
            judged = verdict()
            suspected = self._host.suspected(host.CLUSTER)
        finally:
            lasted = time.time() - made_at
            self._job.ranks[rank].send(signals[1])
        docs = [seen.doc for seen in self._watch.seen.values() if seen.at >= made_at]
        right = [described(doc) for doc in docs if doc["kind"] in kinds and names(doc, target)]
        return {
            "rank": rank,
            "made_at": made_at,
            "lasted_seconds": lasted,
            "found": judged.delay_seconds is not None,
            **asdict(judged),
            "steps": self._steps_within(made_at, judged.delay_seconds),
            "steps_by_event_time": self._steps_within(made_at, judged.event_seconds),
            "right": right,
            "all": [described(doc) for doc in docs],
            # What was near, where the fault was missed.
            "suspected": [described(doc) for doc in suspected],
        }

    def _steps_within(self, begin: float, seconds: float | None) -> int | None:
        """Return the steps that the job made in ``seconds``, None where these are None."""
        return None if seconds is None else len(job.between(self._job.steps(), begin, begin + seconds))

    def _compute_seconds(self, begin: float, end: float) -> dict[int, float]:
        """Return the median of the compute phase by rank, of the ranks that made steps in a span of time."""
        medians = {
            rank: job.compute_median(job.between(self._job.steps(rank), begin, end))
            for rank in range(self._plan.ranks)
        }
        return {rank: seconds for rank, seconds in medians.items() if seconds is not None}


def described(doc: Doc) -> dict[str, Any]:
    """Return of a finding what a reader of the figures needs; pure."""
    kept = ("kind", "severity", "status", "title", "slowdown_ratio", "confidence", "detector")
    return {"label": label(doc), **{name: doc[name] for name in kept if doc.get(name) is not None}}


def run(options: argparse.Namespace, found: dict[str, Any], report: Report) -> None:
    """Run all parts."""
    devices = 0 if options.cpu else int(found["devices"])
    size = _CPU_SIZE if options.cpu else _GPU_SIZE
    plan = job.Plan(options.torch, options.ranks, devices, size, options.factor)
    sampler = telemetry.Sampler()
    rig = Rig(plan, options, sampler)
    with tempfile.TemporaryDirectory(prefix="slowrank-gpu-logs-") as folder, ExitStack() as stack:
        home = Path(options.home or folder)
        home.mkdir(parents=True, exist_ok=True)
        report.run("machine", lambda: _machine(found))
        stack.enter_context(sampler.sampling())
        started = report.run("up", lambda: rig.up(stack, home))
        report.run("idle", rig.idle)
        if started and report.run("start", lambda: rig.start(stack, home)):
            report.run("healthy", rig.healthy)
            report.run("straggler", rig.straggler)
            report.run("stopped", rig.stopped)
        report.run("nvml", lambda: _nvml(sampler, devices))


def _machine(found: dict[str, Any]) -> dict[str, Any]:
    return {
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": found["torch"],
        "cuda": found["cuda"],
        "gpu": found["name"],
        "gpus": found["devices"],
        "driver": _driver(),
    }


def _driver() -> str | None:
    """Return the version of the driver as the kernel shows it."""
    try:
        return Path("/sys/module/nvidia/version").read_text().strip()
    except OSError:
        return None


def _nvml(sampler: telemetry.Sampler, devices: int) -> dict[str, Any]:
    gpus = telemetry.summary(sampler.reads)
    if devices and not gpus:
        raise LookupError(f"NVML gave no GPU in {len(sampler.reads)} reads: does `nvidia-smi` list one?")
    return {"reads": len(sampler.reads), "child_seconds_per_read": sampler.child_seconds, "gpus": gpus}


def main(argv: list[str] | None = None) -> int:
    """Run the rig; return the exit status."""
    options = _options(argv)
    exit_on_signals()
    try:
        found = job.check(options.torch, cpu=options.cpu)
    except job.NoGpu as error:
        _say(str(error))
        return 2
    report = Report(Path(options.json) if options.json else None)
    run(options, found, report)
    for name, reason in report.errors.items():
        _say(f"{name} failed: {reason}")
    _say("passed" if report.passed else "NOT passed")
    return int(not report.passed)


def _say(what: str) -> None:
    print(f"gpu rig: {what}", file=sys.stderr, flush=True)


def _at_least_two(text: str) -> int:
    if (number := int(text)) < 2:
        raise argparse.ArgumentTypeError(f"{number} is less than 2: a rank is slow only beside others")
    return number


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rig.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--ranks", type=_at_least_two, default=4)
    parser.add_argument("--healthy", type=float, default=60.0, help="seconds")
    parser.add_argument("--factor", type=float, default=2.0)
    parser.add_argument("--torch", default=sys.executable, help="an interpreter with PyTorch")
    parser.add_argument("--cpu", action="store_true", help="no GPU: small products, to try the rig itself")
    parser.add_argument("--home", help="folder for logs; a temporary one without it")
    parser.add_argument("--json", default=str(RESULTS), help="file for the figures, empty for none")
    return parser.parse_args(argv)
