"""``slowrank replay`` and ``slowrank backtest``: run recorded telemetry through the detectors."""

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from alerts.report.quantity import counted
from cli.files.gray import load_region
from cli.files.output_check import check_output
from cli.files.progress import busy, tracked
from cli.files.record_output import Speed, paced_output, to_kafka
from cli.remote.client import fail

if TYPE_CHECKING:
    from alerts.finding import Finding
    from slowrank.telemetry import Record
    from streams.config.settings import Tuning
    from streams.files.finding_diff import Change
    from streams.files.record_builder import Read
    from streams.pipeline import Pipeline

# In the summary, where there were any such records.
DETECTOR_FAILED = "on which a detector failed"

Files = Annotated[list[Path], typer.Argument(help="NDJSON, CSV (.gz, .zst too) or Parquet files.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="File with the detector tables; by default slowrank.toml.")
]

# Warnings about data quality that are printed; chosen: one screen.
MAX_DOUBTS = 10

_CHANGES: "dict[Change, str]" = {
    "opened": "opened",
    "gone": "gone",
    "changed": "changed",
    "same": "the same",
}


def backtest(
    files: Files,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="File for NDJSON; - is stdout, the default.")
    ] = None,
    config: ConfigFile = None,
    compare: Annotated[
        Path | None, typer.Option(help="Another such file: show what it would change.")
    ] = None,
    gray_model: Annotated[
        Path | None,
        typer.Option(
            help="Model file of `slowrank gray`, for all clusters; takes precedence over the tables."
        ),
    ] = None,
) -> None:
    """Write the findings of FILES as finding.v1, one a line, each in its final version.

    With --compare, write the differences under the other file instead: as text, or with -o as NDJSON.
    """
    from streams.files.replay import as_ndjson

    read_too = [file for file in (config, compare, gray_model) if file is not None]
    if output is not None:
        check_output(output, [*files, *read_too])
    tunings = [_tuning(path) for path in ((config,) if compare is None else (config, compare))]
    if gray_model is not None:
        region = load_region(gray_model)
        tunings = [tuning.with_region(region) for tuning in tunings]
    read = _read(files)
    pipelines = [_pipeline(tuning) for tuning in tunings]
    suspected: set[str] = set()
    found = [
        _final(read, pipeline, tuning, suspected) for pipeline, tuning in zip(pipelines, tunings, strict=True)
    ]
    if compare is None:
        _put(output, as_ndjson(found[0]))
        _summary(read, pipelines[0], counted(len(found[0]), "finding"))
        if suspected and not found[0]:
            doubtful = counted(len(suspected), "suspicion")
            typer.secho(f"{doubtful} that nothing else confirmed; slowrank replay prints what", err=True)
    else:
        _summary(read, pipelines[1], _compared(found[0], found[1], output))


def replay(
    files: Files,
    speed: Speed = "max",
    kafka: Annotated[bool, typer.Option("--kafka", help="Send the records to Kafka instead.")] = False,
    config: ConfigFile = None,
) -> None:
    """Run FILES through the detectors and print each finding as it opens or changes status or severity."""
    tuning = _tuning(config)
    read = _read(files)
    records = paced_output(read.records, speed)
    if kafka:
        _send(records, oldest=read.records[0].ts)
        return
    pipeline = _pipeline(tuning)
    for line in _status_lines(records, pipeline):
        _print(f"{line}\n".encode())
    _summary(read, pipeline, "replayed")


def _read(files: list[Path]) -> "Read":
    from streams.files.readers import FileProblem
    from streams.files.record_builder import read_records

    try:
        with busy("reading files"):
            return read_records(files)
    except FileProblem as error:
        fail(str(error))


def _tuning(config: Path | None) -> "Tuning":
    from cli.admin.config import FILE, load_settings, load_tuning

    if config is not None and not config.is_file():
        fail(f"{config}: no such file. Give an existing one with --config.")
    return load_tuning(load_settings(), config or FILE)


def _pipeline(tuning: "Tuning") -> "Pipeline":
    from streams.pipeline import local_pipeline

    return local_pipeline(tuning)


def _final(read: "Read", pipeline: "Pipeline", tuning: "Tuning", suspected: set[str]) -> "list[Finding]":
    """Return the findings as they would be stored, with their runbooks; note what was suspected (ids)."""
    from alerts.report.runbook import with_runbook
    from streams.files.replay import final_versions, findings_of

    def noted(findings: "Iterable[Finding]") -> "Iterator[Finding]":
        for finding in findings:
            suspected.add(finding.id)
            yield finding

    found = final_versions(noted(findings_of(tracked(read.records, "detecting"), pipeline)))
    return [with_runbook(finding, tuning.finding(finding.subject.cluster).runbooks) for finding in found]


def _compared(before: "list[Finding]", after: "list[Finding]", output: Path | None) -> str:
    """Write the differences, and return a summary."""
    from streams.files.finding_diff import compare, differences_ndjson

    differences = compare(before, after)
    if output is None:
        for difference in differences:
            if difference.change != "same":
                _print(f"{difference.line()}\n".encode())
    else:
        _put(output, differences_ndjson(differences))
    counts = Counter(d.change for d in differences)
    summary = ", ".join(f"{counts[c]} {label}" for c, label in _CHANGES.items())
    return f"{counted(len(before), 'finding')} before, {len(after)} after: {summary}"


def _put(output: Path | None, lines: bytes) -> None:
    if output is None or str(output) == "-":
        _print(lines)
    else:
        _write(output, lines)


def _status_lines(records: "Iterable[Record]", pipeline: "Pipeline") -> Iterator[str]:
    from alerts.finding import rfc3339
    from streams.files.replay import findings_of

    printed: dict[str, tuple[str, str]] = {}
    for finding in findings_of(records, pipeline):
        if printed.get(finding.id) != (finding.status, finding.severity):
            printed[finding.id] = finding.status, finding.severity
            when = rfc3339(finding.last_seen_at)
            yield f"{when}  {finding.status:<9}  {finding.severity:<8}  {finding.title}"


def _send(records: "Iterable[Record]", *, oldest: float) -> None:
    from cli.admin.config import load_settings
    from slowrank.telemetry.checks import MAX_AGE_SECONDS

    age = time.time() - oldest
    if age > MAX_AGE_SECONDS:
        fail(
            f"the oldest record is {age / 3600:.0f} h old, and the workers reject what is older than "
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


def _print(lines: bytes) -> None:
    if sys.stdout is None:
        fail("standard output is closed. Write to a file with -o.")
    try:
        sys.stdout.buffer.write(lines)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        fail(f"standard output cannot be written ({error.strerror})")


def _summary(read: "Read", pipeline: "Pipeline", what: str) -> None:
    typer.secho(f"{what}; {read.rows} rows read", err=True)
    for ignored in read.unknown.sentences():
        typer.secho(ignored, err=True)
    if read.ahead:
        from streams.files.node_clocks import sentences

        ahead = {node: seconds for (_, node), seconds in read.ahead.items()}
        for told in sentences(ahead, read.nodes_of_jobs()):
            typer.secho(told, err=True)
    if read.without_zone:
        from streams.files.data_quality import zone_doubt

        typer.secho(zone_doubt(read.without_zone), err=True)
    for job_id, doubt in read.doubts[:MAX_DOUBTS]:
        typer.secho(f"job {job_id}: {doubt}", err=True)
    if len(read.doubts) > MAX_DOUBTS:
        typer.secho(f"and {len(read.doubts) - MAX_DOUBTS} more such warnings", err=True)
    for reason, count in sorted(read.bad.items()):
        typer.secho(f"set aside: {count} rows, {reason}", err=True)
    for example in read.examples:
        typer.secho(f"  {example}", err=True)
    for source, count in sorted(pipeline.set_aside.items()):
        typer.secho(f"set aside: {count} x {source} {DETECTOR_FAILED} (a bug; see the log)", err=True)
