"""``slowrank simulate``: write the telemetry of a simulated cluster to a file or to Kafka."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.files.record_output import Speed, paced_output, speed_factor, to_kafka
from cli.remote.client import fail

if TYPE_CHECKING:
    from simulator import Cluster
    from slowrank.telemetry import Record


def simulate(
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of the cluster.")] = 16,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs in a node.")] = 8,
    seconds: Annotated[float, typer.Option(min=1, help="Simulated seconds.")] = 300.0,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same records.")] = 1,
    fault: Annotated[
        list[str] | None,
        typer.Option(help="KIND:node=N,gpu=N,onset=S,magnitude=X…; may be repeated. KIND `list` names all."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="NDJSON file; .gz compresses; - is stdout.")
    ] = None,
    kafka: Annotated[str | None, typer.Option(help="Send to these bootstrap servers, host:port,…")] = None,
    truth: Annotated[Path | None, typer.Option(help="NDJSON file for the injected faults.")] = None,
    speed: Speed = "max",
    cluster: Annotated[str, typer.Option(help="Cluster name in the records.")] = "sim",
) -> None:
    """Simulate one training job on the whole cluster and write what its exporters would send."""
    if fault == ["list"]:
        _list_faults()
        return
    if (output is None) == (kafka is None):
        fail("give one output: -o FILE or --kafka HOST:PORT")
    if truth is not None and output is not None and truth.resolve() == output.resolve():
        fail(f"--truth and -o both name {truth}, and one would overwrite the other: give two files")
    # The last record carries the time it is sent at: records ahead of the clock are refused.
    start = time.time() - seconds * max(0.0, 1 - 1 / speed_factor(speed))
    simulated = _cluster(nodes, gpus, seed=seed, faults=fault or [], name=cluster, start=float(int(start)))
    if late := [fault for fault in simulated.faults if fault.onset >= seconds]:
        fail(
            f"--fault {late[0].kind}: its onset={late[0].onset:g} is not within --seconds {seconds:g}, so "
            "the fault would not happen; give an earlier onset or more seconds"
        )
    records = paced_output(simulated.run(seconds), speed)
    try:
        if truth is not None:
            from simulator.cluster.truth import write

            truth.write_bytes(write(simulated.truth))
        count = _sent(records, kafka) if kafka is not None else _to_file(records, output or Path("-"))
    except OSError as error:
        fail(f"{error.filename} cannot be written ({error.strerror})")
    typer.secho(f"{count} records, {seconds:g} s of {nodes} x {gpus} GPUs, seed {seed}", err=True)


def _cluster(nodes: int, gpus: int, *, seed: int, faults: list[str], name: str, start: float) -> "Cluster":
    from simulator import Cluster, ClusterSpec
    from simulator.cluster.layout import one_job
    from simulator.faults.fault import parse_fault

    try:
        spec = ClusterSpec(
            nodes=nodes, gpus=gpus, nics=gpus, name=name, jobs=(one_job(nodes, gpus),), start=start
        )
        return Cluster(spec, seed=seed, faults=[parse_fault(text) for text in faults])
    except ValueError as error:
        fail(str(error))


def _list_faults() -> None:
    from simulator.faults.catalogue import CATALOGUE

    for kind, row in CATALOGUE.items():
        blame = "a machine is at fault" if row.machine else "no machine is at fault"
        typer.echo(f"{kind:<18} {blame:<23} {', '.join(row.verdicts)}")


def _sent(records: "Iterable[Record]", bootstrap: str) -> int:
    from cli.admin.config import load_settings

    return to_kafka(records, load_settings(kafka_bootstrap=bootstrap))


def _to_file(records: "Iterable[Record]", output: Path) -> int:
    import msgspec

    from slowrank.telemetry.rows import json_rows
    from slowrank.telemetry.rows.row_file import opened

    encoder, count = msgspec.json.Encoder(), 0
    with opened(output) as file:
        for record in records:
            file.write(b"".join(encoder.encode(row) + b"\n" for row in json_rows.rows(record)))
            count += 1
    return count
