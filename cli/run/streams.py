"""``slowrank streams``: run the stream workers; record the telemetry in Kafka."""

import logging
import sys
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from cli.remote.client import fail

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Run the stream workers.")


class RoleName(StrEnum):
    """Role of a worker."""

    detect = "detect"
    sink = "sink"
    all = "all"


Role = Annotated[
    RoleName,
    typer.Option(help="detect: telemetry to suspicions; sink: findings and roll-ups to the database."),
]


@app.command()
def run(role: Role = RoleName.all) -> None:
    """Run one worker process for each role, and restart it whenever it ends."""
    from cli.admin.config import load_settings, load_tuning
    from streams.runtime.housekeeping import pulse
    from streams.runtime.replacement import take_out, take_out_dead
    from streams.runtime.supervisor import Supervisor, stop_on_signals

    settings = load_settings()
    load_tuning(settings)  # fail here once, not in each worker at every restart
    roles = [RoleName.detect, RoleName.sink] if role is RoleName.all else [role]
    if RoleName.sink in roles:
        try:
            settings.dsn()
        except (ValueError, OSError) as error:
            fail(str(error))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    supervisor = Supervisor(
        [_worker_command(one) for one in roles],
        pulse=partial(pulse, settings.streams_runtime_dir),
        ended=partial(take_out, settings),
        # A stalled worker ends itself after the stall time; a frozen process cannot, and is killed. Rounds
        # of a worker that waits for brokers take a third of this at most (Probe.committed).
        silent_seconds=2 * settings.streams_stall_seconds,
    )
    stop_on_signals(supervisor)
    take_out_dead(settings)
    supervisor.run()


@app.command(hidden=True)
def worker(role: Role) -> None:
    """Run one worker process; `run` starts these."""
    from cli.admin.config import load_settings, load_tuning
    from streams.runtime.private_folder import Unprepared
    from streams.runtime.worker import run as run_worker

    if role is RoleName.all:
        fail("a worker has one role: give --role detect or --role sink")
    settings = load_settings()
    try:
        run_worker(settings, load_tuning(settings), "detect" if role is RoleName.detect else "sink")
    except Unprepared as error:
        fail(str(error))


@app.command()
def record(
    output: Annotated[Path, typer.Option("-o", "--output", help="NDJSON file; .gz compresses; - is stdout.")],
    follow: Annotated[bool, typer.Option(help="Continue until interrupted.")] = False,
) -> None:
    """Write the telemetry in Kafka as JSON rows, for `slowrank replay` and `slowrank backtest`."""
    import asyncio

    from cli.admin.config import load_settings
    from streams.runtime.kafka.recorder import RecordingProblem, write_recording

    settings = load_settings()
    try:
        rows, unreadable = asyncio.run(write_recording(settings, output, follow=follow))
    except RecordingProblem as error:
        fail(str(error))
    if not rows and not unreadable:
        fail(f"the topics are empty, {output} was not written. Check that exporters send to this Kafka.")
    typer.secho(f"{rows} rows written to {output}, {unreadable} messages could not be read", err=True)


def _worker_command(role: RoleName) -> list[str]:
    start = "from cli import main; main()"
    return [sys.executable, "-c", start, "streams", "worker", "--role", role.value]
