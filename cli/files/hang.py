"""``slowrank hang``: the ranks that a job waits for, from what its ranks recorded of their collectives."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.remote.client import fail

if TYPE_CHECKING:
    from detectors.job.waits.standstill import Standstill, Trace
    from exporters.dumps.flight_recorder import Dump

# Chosen: a screen. The first have a cause, and the others mostly follow from them.
_MOST_SHOWN = 8


def hang(
    dumps: Annotated[list[Path], typer.Argument(help="Dumps of one job, or folders of them.")],
) -> None:
    """Name the ranks that a job waits for (dumps of PyTorch's flight recorder)."""
    from detectors.job.waits.standstill import standstills

    read = _read(dumps)
    found = standstills({dump.rank: _trace(dump) for dump in read.values()})
    if not found:
        typer.echo(f"{len(read)} ranks: every operation has ended")
        return
    for one in found[:_MOST_SHOWN]:
        typer.echo("\n".join(_lines(one, read)))
    if len(found) > _MOST_SHOWN:
        typer.echo(f"and {len(found) - _MOST_SHOWN} more that do not end")


def _read(paths: list[Path]) -> dict[int, "Dump"]:
    """Read the dumps, of two of one rank the later."""
    from exporters.dumps.file import BadDump, rank_of
    from exporters.dumps.flight_recorder import read_dump

    files = [file for path in paths for file in (sorted(path.iterdir()) if path.is_dir() else [path])]
    files = [file for file in files if file in paths or (file.is_file() and rank_of(file) is not None)]
    found: dict[int, Dump] = {}
    for file in sorted(files, key=_modified):
        try:
            dump = read_dump(file)
        except BadDump as error:
            typer.secho(f"{file}: {error}", err=True)
        except OSError as error:
            typer.secho(f"{file}: cannot be read ({error.strerror})", err=True)
        else:
            found[dump.rank] = dump
    if not found:
        fail("no dump of the flight recorder: a file for each rank, whose name ends with its number")
    return found


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _trace(dump: "Dump") -> "Trace":
    from detectors.job.waits.standstill import Call, Trace

    calls = [Call(i.group, i.number, i.operation, i.elements, i.started, i.done, i.peer) for i in dump.issued]
    return Trace(dump.groups, calls)


def _lines(one: "Standstill", read: dict[int, "Dump"]) -> Iterator[str]:
    from streams.job.view import spans

    what = f"{one.operation} {one.number} ({one.elements} elements) of group {one.group}"
    yield f"{what}, ranks {spans(one.members)}: waiting in it: {len(one.waiting)}"
    if not one.awaited:
        yield "  all have arrived: it does not move data; look at the network and the GPUs of these ranks"
    for rank, call in sorted(one.astray.items()):
        yield f"  rank {rank} has issued {call.operation} {call.number} ({call.elements} elements) instead"
    for ranks, text in (
        (one.absent, "not issued by"),
        (one.queued, "issued and not started, for the GPU is at earlier work, by"),
        (one.silent, "no dump of"),
    ):
        if ranks:
            yield f"  {text} {spans(ranks)}"
    if one.cause:
        yield f"  cause: {spans(one.cause)}, for which the others wait"
        for rank in one.cause[:_MOST_SHOWN]:
            if rank in read and read[rank].issued:
                last = read[rank].issued[-1]
                state = "ended" if last.done else "has not ended"
                at = f", at {last.caller}" if last.caller else ""
                issued = f"{last.operation} {last.number} of group {last.group}"
                yield f"  last of rank {rank}: {issued}, which {state}{at}"
    elif one.awaited:
        yield "  these ranks wait for others themselves"
