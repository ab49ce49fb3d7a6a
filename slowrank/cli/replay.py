"""``slowrank replay`` and ``slowrank backtest``: recorded telemetry through the detectors."""

import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slowrank.cli.feed import Speed, at_speed, to_kafka
from slowrank.cli.remote import fail

if TYPE_CHECKING:
    from slowrank.telemetry import Record
    from streams.file_records import Read
    from streams.topology import Pipeline

Files = Annotated[list[Path], typer.Argument(help="NDJSON, CSV (.gz, .zst too) or Parquet files.")]


def backtest(
    files: Files,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="File for the findings; - is stdout.")
    ] = Path("-"),
) -> None:
    """Write the findings that FILES would have given: finding.v1, one a line, each in its final version."""
    from streams.replay import as_ndjson, final_versions, findings_of

    read, pipeline = _read(files), _pipeline()
    lines = as_ndjson(final_versions(findings_of(read.records, pipeline)))
    if str(output) == "-":
        sys.stdout.buffer.write(lines)
    else:
        _write(output, lines)
    _summary(read, pipeline, f"{len(lines.splitlines())} findings")


def replay(
    files: Files,
    speed: Speed = "max",
    kafka: Annotated[bool, typer.Option("--kafka", help="Send the records to Kafka instead.")] = False,
) -> None:
    """Feed FILES through the detectors and print each finding as it opens or changes its status."""
    read = _read(files)
    records = at_speed(read.records, speed)
    if kafka:
        _send(records, oldest=read.records[0].ts)
        return
    pipeline = _pipeline()
    for line in _news(records, pipeline):
        typer.echo(line)
    _summary(read, pipeline, "replayed")


def _read(files: list[Path]) -> "Read":
    from streams.file_records import read_records
    from streams.files import FileProblem

    try:
        return read_records(files)
    except FileProblem as error:
        fail(str(error))


def _pipeline() -> "Pipeline":
    from alerts.config import FindingConfig
    from slowrank.cli.config import load_settings
    from streams.topology import local_pipeline

    return local_pipeline(config=FindingConfig(gpu_hour_price=load_settings().gpu_hour_price))


def _news(records: "Iterable[Record]", pipeline: "Pipeline") -> Iterator[str]:
    from alerts.finding import rfc3339
    from streams.replay import findings_of

    told: dict[str, str] = {}
    for finding in findings_of(records, pipeline):
        if told.get(finding.id) != finding.status:
            told[finding.id] = finding.status
            when = rfc3339(finding.last_seen_at)
            yield f"{when}  {finding.status:<9}  {finding.severity:<8}  {finding.title}"


def _send(records: "Iterable[Record]", *, oldest: float) -> None:
    from slowrank.cli.config import load_settings
    from slowrank.telemetry.codec import MAX_AGE_SECONDS

    age = time.time() - oldest
    if age > MAX_AGE_SECONDS:
        fail(
            f"the oldest record is {age / 3600:.0f} h old, and the workers set aside what is older than "
            f"{MAX_AGE_SECONDS / 3600:.0f} h. Replay it without --kafka."
        )
    settings = load_settings()
    sent = to_kafka(records, settings)
    typer.secho(f"{sent} records sent to {settings.kafka_bootstrap}", err=True)


def _write(output: Path, lines: bytes) -> None:
    try:
        output.write_bytes(lines)
    except OSError as error:
        fail(f"{output}: cannot be written ({error.strerror})")


def _summary(read: "Read", pipeline: "Pipeline", what: str) -> None:
    typer.secho(f"{what}; {read.rows} rows read", err=True)
    if read.wall_clock_only:
        typer.secho("no row has compute_seconds: without it nobody can say which rank is slow", err=True)
    for reason, count in sorted(read.bad.items()):
        typer.secho(f"set aside: {count} rows, {reason}", err=True)
    for example in read.examples:
        typer.secho(f"  {example}", err=True)
    for source, count in sorted(pipeline.set_aside.items()):
        typer.secho(
            f"set aside: {count} x {source} on which a detector failed (a bug; see the log)", err=True
        )
