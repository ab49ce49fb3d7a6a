"""``python -m benchmarks.rig``: make faults in real processes and measure what is found, and how soon.

    --fault NAME   one of the table (repeat for several; all without it)
    --runs N       runs of each fault; for those of nodes, of which a cluster has four, no more than there are
    --quiet MIN    a healthy job for so many minutes instead, beside a neighbour that loads CPU and memory
    --torch PYTHON an interpreter with PyTorch, for a job of DistributedDataParallel over gloo
    --json FILE    where the figures go (benchmarks/results/rig.json)

Needs root, for network namespaces; all addresses are inside them. Exit status 1 when a fault was missed.
SIGINT and SIGTERM end it with all its processes, namespaces and mounts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

from benchmarks.rig.cluster import Cluster
from benchmarks.rig.faults import FAULTS, Fault
from benchmarks.rig.installation import ROOT, Installation, installed, prepare
from benchmarks.rig.neighbour import neighbour
from benchmarks.rig.network import Node, NotPermitted, bridges, check_permitted, namespace
from benchmarks.rig.verdict import Target, Verdict, judge, label, pages
from benchmarks.rig.watch import Watch

RESULTS = ROOT / "benchmarks/results/rig.json"
INSIDE = "SLOWRANK_RIG_INSIDE"

NODES = 4
DEVICE_SECONDS = 0.4
# Above the 60 gaps after which a job's pauses count as known (detectors.job.progress).
WARM_STEPS = 70
_START_SECONDS = 120.0
# A run ends with its finding, or so long after it should have come: how late it was is of interest.
_PATIENCE, _LEAST_PATIENCE_SECONDS = 3.0, 45.0
_SETTLE_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one fault.

    ``steps``: those that the job made from the fault until the finding, by event time, where its deadline
    ``within`` is in steps; else None, and that is in seconds.
    """

    fault: str
    rank: int
    step_seconds: float
    within: float
    found: bool
    delay_seconds: float | None
    event_seconds: float | None
    steps: int | None
    kind: str | None
    severity: str | None
    others: tuple[str, ...]


class NotTraining(RuntimeError):
    """The training job does not run; the message gives the reason."""


def steps_reported(installation: Installation, job: str) -> int:
    """Return the number of steps that the job has made, by the log of rank 0."""
    path = installation.home / f"{job}-rank0.log"
    # The last line may be half written.
    whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
    steps = [line for line in whole.splitlines() if line.startswith("step ")]
    return int(steps[-1].removeprefix("step ")) if steps else 0


def run_fault(fault: Fault, cluster: Cluster, rank: int, number: int) -> Run:
    """Train, make the fault, watch for its finding, and end the job."""
    installation = cluster.installation
    watch = Watch(installation, cluster.name)
    node = cluster.node_of(rank)
    job = f"{fault.name}-{number}-{cluster.name}"
    with cluster.training(job):
        began, first = _warm_up(cluster, job)
        step_seconds = (time.monotonic() - began) / max(1, steps_reported(installation, job) - first)
        cluster.measure_processor_use(rank)
        watch.look()
        made_at, made_steps = time.time(), [(time.time(), steps_reported(installation, job))]
        target = Target(fault.unit, rank, node.name, job)

        def verdict() -> Verdict:
            made_steps.append((time.time(), steps_reported(installation, job)))
            return judge(watch.look(), target, fault.kinds, made_at=made_at)

        with fault.make(cluster, rank):
            cluster.wait(
                lambda: verdict().delay_seconds is not None,
                seconds=max(_LEAST_PATIENCE_SECONDS, _PATIENCE * fault.within),
                pause=0.5,
            )
            time.sleep(_SETTLE_SECONDS)
        judged = verdict()
    steps = _steps_until(made_at, judged.event_seconds, made_steps) if fault.steps else None
    took = steps if fault.steps else judged.delay_seconds
    return Run(
        fault=fault.name,
        rank=rank,
        step_seconds=round(step_seconds, 3),
        within=fault.within,
        found=took is not None and took <= fault.within,
        delay_seconds=_rounded(judged.delay_seconds),
        event_seconds=_rounded(judged.event_seconds),
        steps=steps,
        kind=judged.kind,
        severity=judged.severity,
        others=judged.others,
    )


def _steps_until(made_at: float, seconds: float | None, made: Sequence[tuple[float, int]]) -> int | None:
    """Return the steps that a job made within ``seconds`` of the first look, None where these are None.

    ``made`` are the looks: time, and steps so far. The first look after the end counts, so that a step too
    many may be counted and none is left out.
    """
    if seconds is None:
        return None
    after = (steps for at, steps in made if at >= made_at + seconds)
    return next(after, made[-1][1]) - made[0][1]


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


def _warm_up(cluster: Cluster, job: str) -> tuple[float, int]:
    """Wait until the job has made its first steps; return when half of them were done, and how many."""
    installation = cluster.installation
    _say(f"training {job}: {cluster.world_size} ranks make {WARM_STEPS} steps")

    def half() -> bool:
        return steps_reported(installation, job) >= WARM_STEPS // 2

    cluster.wait(lambda: half() or cluster.ended_rank() is not None, seconds=_START_SECONDS)
    if not half():
        raise NotTraining(_why_not(cluster, job))
    began, first = time.monotonic(), steps_reported(installation, job)
    cluster.wait(lambda: steps_reported(installation, job) >= WARM_STEPS, seconds=_START_SECONDS)
    return began, first


def _why_not(cluster: Cluster, job: str) -> str:
    """Return why a job does not train: the last line that its first rank to end wrote, else rank 0."""
    ended = cluster.ended_rank()
    log = cluster.installation.home / f"{job}-rank{ended or 0}.log"
    what = f"makes no steps in {_START_SECONDS:.0f} s" if ended is None else f"ended: rank {ended}"
    return f"job {job} {what}; the last line of {log}: {last_line(log)}"


def last_line(log: Path) -> str:
    """Return what a process wrote last into its log."""
    lines = log.read_text(errors="replace").split("\n") if log.exists() else []
    # PyTorch ends its warnings with the stack they came from.
    said = (line.strip() for line in reversed(lines) if line.strip() and not line.startswith("frame #"))
    return next(said, "nothing")


@contextmanager
def clusters(
    installation: Installation, count: int, device: float, torch: str | None
) -> Iterator[list[Cluster]]:
    """Start ``count`` clusters side by side."""
    with ExitStack() as stack:
        made = []
        _say(f"starting {count * NODES} nodes")
        for number in range(count):
            nodes = [Node(f"r{number}-n{n}", number * NODES + n) for n in range(NODES)]
            made.append(Cluster(f"rig{number}", nodes, installation, device=device, torch=torch))
            stack.enter_context(made[-1].up())
        yield made


def run_faults(
    options: argparse.Namespace, installation: Installation, save: Callable[[list[Run]], None]
) -> list[Run]:
    """Run the faults on clusters side by side until each has had its runs; ``save`` takes those so far."""
    chosen = [FAULTS[name] for name in options.fault or FAULTS]
    queue = [(fault, number) for fault in chosen for number in range(options.runs)]
    runs: list[Run] = []
    with clusters(installation, min(options.clusters, len(queue)), options.device, options.torch) as made:
        # A thread for each cluster.
        threads = [ThreadPoolExecutor(1) for _ in made]

        def submit(fault: Fault, number: int) -> Future[Run]:
            # Another node in each of four runs: what is open about one is not found again.
            turn, which = divmod(number, len(made))
            rank = (7 + 3 * turn) % made[which].world_size
            return threads[which].submit(run_fault, fault, made[which], rank, number)

        try:
            for done in as_completed([submit(*job) for job in queue]):
                runs.append(done.result())
                print(describe(runs[-1]), flush=True)
                save(runs)
        except BaseException:
            for cluster in made:
                cluster.ending.set()
            raise
        finally:
            for thread in threads:
                thread.shutdown(cancel_futures=True)
    return runs


def describe(run: Run) -> str:
    """Return one run as a line."""
    delay = "never"
    if run.delay_seconds is not None:
        delay = (
            f"{run.delay_seconds:.1f} s, by event time {run.event_seconds:.1f} s, {run.kind} {run.severity}"
        )
    others = f"; also: {', '.join(run.others)}" if run.others else ""
    verdict = "found" if run.found else "MISSED"
    within = f"within {run.within:.0f} s"
    if run.steps is not None:
        within = f"{run.steps} steps, within {run.within:.0f}"
    return f"{run.fault:16} rank {run.rank}  {verdict:6}  {delay}, {within}{others}"


def run_quiet(options: argparse.Namespace, installation: Installation) -> dict[str, object]:
    """Run a healthy job, half of the time beside a neighbour; return what was found nevertheless."""
    with clusters(installation, 1, options.device, options.torch) as (cluster,):
        watch = Watch(installation, cluster.name)
        ends = time.monotonic() + 60 * options.quiet
        with ExitStack() as stack, cluster.training("quiet", isolated=not options.noisy):
            if options.noisy:
                stack.enter_context(neighbour(installation))
            while time.monotonic() < ends and cluster.ended_rank() is None:
                watch.look()
                time.sleep(5.0)
            steps = steps_reported(installation, "quiet")
            if not steps or cluster.ended_rank() is not None:
                raise NotTraining(_why_not(cluster, "quiet"))
    docs = [seen.doc for seen in watch.seen.values()]
    found = [f"{label(doc)} {doc['severity']}" for doc in docs]
    return {
        "minutes": options.quiet,
        "noisy": options.noisy,
        "steps": steps,
        "ranks": cluster.world_size,
        "pages": len(pages(docs)),
        "findings": found,
    }


def main(argv: list[str] | None = None) -> int:
    """Run the rig; in a network namespace of its own, into which it starts itself."""
    options = _options(argv)
    exit_on_signals()
    try:
        check_permitted()
        if INSIDE not in os.environ:
            if options.torch:
                check_torch(options.torch)
            return _start_inside(sys.argv[1:] if argv is None else argv)
        return _run(options)
    except (NotPermitted, NotTraining) as error:
        _say(str(error))
        return 2


def _run(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="slowrank-rig-") as folder, bridges():
        home = Path(options.home or folder)
        home.mkdir(parents=True, exist_ok=True)
        _say("starting Kafka, TimescaleDB and the stream workers")
        with installed(home) as installation:
            if options.quiet:
                quiet = run_quiet(options, installation)
                print(json.dumps(quiet, indent=1))
                _save(options, {"quiet": quiet})
                return int(bool(quiet["pages"]))
            runs = run_faults(
                options, installation, lambda runs: _save(options, {"runs": [asdict(run) for run in runs]})
            )
    return int(not all(run.found for run in runs))


def _say(what: str) -> None:
    print(f"rig: {what}", file=sys.stderr, flush=True)


def check_torch(python: str, code: str = "import torch.distributed", **environ: str) -> str:
    """Return what ``code`` prints in the interpreter ``python``; ``environ`` is its environment, if given.

    Raises ``NotTraining`` unless it starts and has PyTorch.
    """
    try:
        done = subprocess.run(
            [python, "-c", code], capture_output=True, text=True, timeout=_START_SECONDS, env=environ or None
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotTraining(f"--torch {python} is no interpreter that starts: {error}") from error
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise NotTraining(
            f"--torch {python} has no PyTorch ({reason}): name an interpreter that has, such as that of a "
            "virtual environment after `pip install torch`"
        )
    return done.stdout


def _save(options: argparse.Namespace, report: dict[str, object]) -> None:
    if options.json:
        machine = {"cpus": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()}
        write(Path(options.json), report | {"machine": machine})


def write(path: Path, report: dict[str, object]) -> None:
    """Put a report into the results file, beside what it does not replace."""
    held: dict[str, object] = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(held | report, indent=1, sort_keys=True) + "\n")


def _start_inside(argv: list[str]) -> int:
    _say("fetching Kafka and TimescaleDB, unless they are there")
    prepare()
    hub = f"sr{os.getpid()}-hub"
    with namespace(hub):
        command = ["ip", "netns", "exec", hub, sys.executable, "-m", "benchmarks.rig", *argv]
        inside = subprocess.Popen(command, env=os.environ | {INSIDE: "1"})
        try:
            return inside.wait()
        finally:
            inside.terminate()
            inside.wait()


def exit_on_signals() -> None:
    """Let the first SIGINT or SIGTERM raise ``SystemExit``, so that every context removes what it made."""

    def leave(number: int, _frame: FrameType | None) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        # 128 + the signal's number, as a shell reports it.
        sys.exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, leave)


def _at_least_one(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fault", action="append", choices=sorted(FAULTS))
    parser.add_argument("--runs", type=_at_least_one, default=5)
    parser.add_argument("--clusters", type=_at_least_one, default=1, help="clusters side by side")
    parser.add_argument("--device", type=float, default=DEVICE_SECONDS, help="device time of a step, seconds")
    parser.add_argument("--quiet", type=float, default=0.0, help="minutes of a healthy job instead of faults")
    parser.add_argument("--noisy", action="store_true", help="without priority for ranks, beside a neighbour")
    parser.add_argument("--torch", help="an interpreter with PyTorch: train with DistributedDataParallel")
    parser.add_argument("--home", help="folder for logs; a temporary one without it")
    parser.add_argument("--json", default=str(RESULTS), help="file for the figures, empty for none")
    return parser.parse_args(argv)
