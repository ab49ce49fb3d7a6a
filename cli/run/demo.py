"""``slowrank demo``: a simulated cluster with one hidden fault, found by the product, in one process."""

import json
import logging
import secrets
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.remote.client import fail

if TYPE_CHECKING:
    import httpx

    from cli.embedded.local_stack import LocalStack
    from cli.run.demo_breakage import Breakage
    from cli.run.demo_scenario import DemoResult
    from cli.run.demo_screen import Screen
    from simulator import Cluster
    from slowrank.telemetry import Record

Json = dict[str, Any]

# The rack of the machine that runs the demo, beside the simulated ones.
THIS_HOST = "this-machine"
# Simulated seconds after which nothing more happens. Chosen: nobody looks at a demo for a day.
LONGEST_SECONDS = 86400.0


def demo(
    seed: Annotated[
        int | None, typer.Option(min=0, help="Selects fault and machine; random by default.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Exit at the end, with code 0 if right.")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the result to this file.")] = None,
    speed: Annotated[
        float, typer.Option(min=0, help="Multiple of real time; 0 = as fast as possible.")
    ] = 10.0,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the API; 0 = any free one.")] = 0,
) -> None:
    """Find a simulated straggler, on this machine, in a minute: no Docker, no GPU, no Kafka, no root.

    In a terminal the cluster then runs on, for its pages, for other commands, and to break something else,
    until q or Ctrl-C. Elsewhere, as in a pipe, and with --once, the demo ends with its finding.
    """
    import numpy as np
    from rich.console import Console

    from cli.run.demo_breakage import Breakage
    from cli.run.demo_scenario import ONSET_SECONDS, TIMEOUT_SECONDS, draw
    from cli.run.demo_screen import Screen
    from cli.run.keyboard import pressed_keys

    if json_file is not None and not json_file.parent.is_dir():
        fail(f"--json {json_file}: there is no folder {json_file.parent}. Create it first.")
    seed = secrets.randbelow(100_000) if seed is None else seed
    # Browsers open connections ahead and leave some unused: warnings of their end would fill this screen.
    logging.getLogger("api.http.connections").setLevel(logging.ERROR)
    # SIGTERM and a closed terminal clean up as Ctrl-C does.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        # As long ago as the run may last: no record is ahead of the clock at any speed, and at the finding
        # the newest is not so old that pages warn of it.
        cluster = draw(seed, start=float(int(time.time())) - ONSET_SECONDS[1] - TIMEOUT_SECONDS)
        breakage = Breakage(cluster, np.random.default_rng(seed))
        with _running(port, breakage) as (stack, api, key_file):
            screen, stays = Screen(Console()), not once and sys.stdout.isatty()
            demo_run = _DemoRun(
                stack, api, screen, seed=seed, cluster=cluster, breakage=breakage, speed=speed
            )
            result = demo_run.run(stack.link if stays else lambda _: _no_link(json_file), stays=stays)
            if json_file is not None:
                json_file.write_text(json.dumps(result.to_json(), indent=2) + "\n")
            if stays:
                path = f"/findings/{result.finding['id']}" if result.finding else "/"
                link = stack.sign_in_link(key_file.read_text(), path)
                screen.waiting(stack.url, str(key_file), _own_command(), link, breakage.choices)
                with suppress(KeyboardInterrupt), pressed_keys() as keys:
                    demo_run.stay(keys)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except OSError as error:
        fail(f"the demo cannot run: {error}. Choose another port with --port, or another folder with TMPDIR.")
    if not result.passed:
        raise typer.Exit(1)


def _no_link(json_file: Path | None) -> str:
    """Return where the evidence is when the demo no longer serves it."""
    return (
        f"in {json_file}"
        if json_file
        else "a demo that runs in a terminal, without --once, goes on to serve it"
    )


def _own_command() -> str:
    """Return the command of this program for the user's shell: after ``make demo`` it is not on the PATH."""
    if shutil.which("slowrank") == sys.argv[0]:
        return "slowrank"
    own, here = Path(sys.argv[0]).absolute(), Path.cwd()
    return str(own.relative_to(here) if own.is_relative_to(here) else own)


@contextmanager
def _running(port: int, breakage: "Breakage") -> "Iterator[tuple[LocalStack, httpx.Client, Path]]":
    """Start the stack in a temporary folder, with this host's telemetry."""
    import httpx

    from cli.admin.config import load_settings, load_tuning
    from cli.admin.private_file import write_private
    from cli.embedded.database_folder import EmbeddedError
    from cli.embedded.local_stack import StackConfig, host_telemetry, local_stack

    # The demo has its own database and never uses the operator's.
    settings = load_settings(database_url=None, database_url_file=None)
    tuning = load_tuning(settings)
    with tempfile.TemporaryDirectory(prefix="slowrank-demo-") as folder:
        # As root the database runs as another user, who must be able to enter its folder here.
        Path(folder).chmod(0o711)
        config = StackConfig(
            Path(folder) / "database", port, throwaway=True, breakable=breakage, command="slowrank demo"
        )
        try:
            with (
                local_stack(config, settings, tuning) as stack,
                host_telemetry(stack, listen=(), rack=THIS_HOST),
            ):
                write_private(Path(folder) / "key", stack.new_key("demo"))
                # A key of its own: at full speed the screen uses up the requests that its key allows.
                headers = {"authorization": f"Bearer {stack.new_key('demo screen')}"}
                with httpx.Client(base_url=stack.url, headers=headers, timeout=30, trust_env=False) as api:
                    yield stack, api, Path(folder) / "key"
        except EmbeddedError as error:
            fail(str(error))


class _DemoRun:
    """One run of the demo: sends the cluster's records to the stack and reads findings over HTTP.

    The injected fault is used for the output and the result only; the stack receives nothing of it.
    """

    def __init__(
        self,
        stack: "LocalStack",
        api: "httpx.Client",
        screen: "Screen",
        *,
        seed: int,
        cluster: "Cluster",
        breakage: "Breakage",
        speed: float,
    ) -> None:
        from cli.run.demo_scenario import SETTLE_SECONDS, TIMEOUT_SECONDS

        self._stack = stack
        self._api = api
        self._screen = screen
        self._seed = seed
        self._cluster = cluster
        self._breakage = breakage
        self._start = cluster.spec.start
        # Used up by `run` first, then by `stay`.
        self._seconds = groupby(self._records(speed), key=lambda record: int(record.ts))
        self._onset = self._cluster.faults[0].onset
        self._end = self._onset + TIMEOUT_SECONDS
        self._settle = SETTLE_SECONDS
        self._steps: deque[float] = deque(maxlen=20)
        self._found_at: float | None = None
        self._injected = False
        self._last: list[Json] = []

    def run(self, proof: Callable[[str], str], *, stays: bool) -> "DemoResult":
        """Run until some time after the right finding, or until the timeout.

        ``proof`` returns the address of a finding by its id. If the demo ``stays`` the cluster goes on.
        """
        from cli.run.demo_scenario import CLUSTER, evaluate

        spec = self._cluster.spec
        self._screen.head(seed=self._seed, nodes=spec.nodes, gpus=spec.gpus, url=self._stack.url)
        for second, batch in self._seconds:
            records = list(batch)
            self._stack.sink.accept(records)
            at = second + 1 - self._start
            self._report(at, records)
            if at > self._end:
                break
        if not stays:
            self._stack.sink.finish(CLUSTER)
        self._show(self._end)
        result = evaluate(self._seed, self._cluster.truth[0], self._last, seconds=self._found_at)
        if result.finding is not None:
            self._screen.details(result.finding, proof(result.finding["id"]))
        self._screen.result(result)
        return result

    def stay(self, keys: Callable[[], str]) -> None:
        """Let the cluster run on and break what is asked for, until ``q`` is pressed."""
        by_key = {choice.key: choice for choice in self._breakage.choices}
        for second, batch in self._seconds:
            self._stack.sink.accept(list(batch))
            at = second + 1 - self._start
            for key in keys():
                if key == "q":
                    return
                if key in by_key:
                    self._break(by_key[key].name, at)
            for broken in self._breakage.apply(at):
                self._screen.note(at, f"({broken.title}; hidden from the detectors)")
            self._show(at)
            self._breakage.follow(self._last)

    def _break(self, name: str, at: float) -> None:
        try:
            self._breakage.begin(name)
        except ValueError as error:
            self._screen.note(at, str(error))

    def _records(self, speed: float) -> "Iterator[Record]":
        """Yield the records ``speed`` times as fast as they happen, and never ahead of the clock."""
        from streams.files.replay import paced

        records: Iterable[Record] = self._cluster.run(LONGEST_SECONDS)
        if speed:
            records = paced(records, speed=speed, clock=time.monotonic, sleep=time.sleep)
        for record in records:
            if (ahead := record.ts - time.time()) > 0:
                time.sleep(ahead)
            yield record

    def _report(self, at: float, records: "list[Record]") -> None:
        if self._onset <= at and not self._injected:
            self._injected = True
            self._screen.injected(self._onset)
        if not self._injected:
            self._learn(at, records)
        self._show(at)

    def _learn(self, at: float, records: "list[Record]") -> None:
        from slowrank.telemetry import JobSteps
        from slowrank.telemetry.columns import read
        from slowrank.telemetry.schema import STEP_SCHEMAS

        for record in records:
            if isinstance(record, JobSteps):
                rows = read(STEP_SCHEMAS[record.schema].rows, record.rows, ("rank", "step_seconds"))
                pairs = zip(rows["rank"], rows["step_seconds"], strict=True)
                self._steps.extend(seconds for rank, seconds in pairs if rank == 0)
        if len(self._steps) > 2 and int(at) % 15 == 0:
            usual = statistics.median(self._steps)
            # Scaled median absolute deviation: not affected by one long step, such as a checkpoint.
            spread = 1.4826 * statistics.median(abs(step - usual) for step in self._steps)
            self._screen.learning(at, usual, spread)

    def _show(self, at: float) -> None:
        """Show new and changed findings; the first right one sets the end of the run."""
        from cli.run.demo_scenario import names_culprit

        self._last = self._findings()
        for finding in self._last:
            self._screen.finding(at, finding, self._start)
            if self._found_at is None and names_culprit(finding, self._cluster.truth[0]):
                self._found_at = at - self._onset
                self._end = min(self._end, at + self._settle)

    def _findings(self) -> list[Json]:
        """Return the findings about the simulated cluster as the API serves them."""
        from cli.run.demo_scenario import CLUSTER

        query: Json = {"cluster": CLUSTER, "limit": 1000}
        # At full speed the demo asks more often than the rate limit of its key allows.
        while (answer := self._api.get("/api/v1/findings", params=query)).status_code == 429:
            time.sleep(float(answer.headers["retry-after"]))
        answer.raise_for_status()
        found: list[Json] = answer.json()["items"]
        return found
