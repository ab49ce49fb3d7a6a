"""``slowrank streams``: the stream workers, and recordings of what flows through them."""

import logging
import sys
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from slowrank.cli.remote import fail

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Run the stream workers.")


class RoleName(StrEnum):
    """What a worker does."""

    detect = "detect"
    sink = "sink"
    all = "all"


Role = Annotated[RoleName, typer.Option(help="detect: telemetry to suspicions; sink: into the database.")]


@app.command()
def run(role: Role = RoleName.all) -> None:
    """Run a worker process per role, and start it again whenever it ends."""
    from slowrank.cli.config import load_settings, load_tuning
    from streams.supervisor import Supervisor, stop_on_signals
    from streams.tend import pulse

    settings = load_settings()
    load_tuning(settings)  # workers would each refuse it, again and again
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
        # A worker that stands still ends itself after the stall time; a frozen one cannot: it is killed.
        silent_seconds=4 * settings.streams_stall_seconds,
    )
    stop_on_signals(supervisor)
    supervisor.run()


@app.command(hidden=True)
def worker(role: Role) -> None:
    """Be one worker process; `run` starts these."""
    from slowrank.cli.config import load_settings, load_tuning
    from streams.prerequisites import Unprepared
    from streams.worker import run as run_worker

    if role is RoleName.all:
        fail("one worker has one role: detect or sink")
    settings = load_settings()
    try:
        run_worker(settings, load_tuning(settings), "detect" if role is RoleName.detect else "sink")
    except Unprepared as error:
        fail(str(error))


@app.command()
def record(
    output: Annotated[Path, typer.Option("-o", "--output", help="NDJSON file; .gz compresses; - is stdout.")],
    follow: Annotated[bool, typer.Option(help="Go on until interrupted.")] = False,
) -> None:
    """Write the telemetry in Kafka as JSON rows, for `slowrank replay` and `slowrank backtest`."""
    import asyncio

    from slowrank.cli.config import load_settings
    from streams.recording import RecordingProblem, write_recording

    settings = load_settings()
    try:
        rows, unreadable = asyncio.run(write_recording(settings, output, follow=follow))
    except RecordingProblem as error:
        fail(str(error))
    if not rows and not unreadable:
        fail(f"Kafka holds no telemetry, {output} is as it was. Do exporters send to these topics?")
    typer.secho(f"{rows} rows written to {output}, {unreadable} messages could not be read", err=True)


def _worker_command(role: RoleName) -> list[str]:
    start = "from slowrank.cli import main; main()"
    return [sys.executable, "-c", start, "streams", "worker", "--role", role.value]
