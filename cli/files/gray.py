"""``slowrank gray``: fit the model of healthy nodes to recorded telemetry."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.files.output_check import check_output
from cli.files.progress import busy
from cli.remote.client import fail

if TYPE_CHECKING:
    from detectors.node.gray_envelope import Envelope


def gray(
    files: Annotated[list[Path], typer.Argument(help="Node samples of hours without a fault.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="File for the model.")] = Path("gray.json"),
) -> None:
    """Fit the region of healthy nodes over all their features (needs scikit-learn, extra science)."""
    import msgspec

    from detectors.node.gray_envelope import MIN_WINDOWS_PER_FEATURE
    from streams.cluster.gray_windows import MIN_NODES
    from streams.config.gray_training import fit
    from streams.files.readers import FileProblem
    from streams.files.record_builder import read_records
    from streams.gray_features import FEATURES

    check_output(output, files)
    try:
        with busy("reading files and fitting"):
            region = fit(read_records(files).records)
    except FileProblem as error:
        fail(str(error))
    except ValueError as error:
        fail(
            f"{error}. A window is one minute of a node, and needs {MIN_NODES} nodes or more: "
            f"{MIN_NODES} nodes of {len(FEATURES)} features need "
            f"{-(-MIN_WINDOWS_PER_FEATURE * len(FEATURES) // MIN_NODES)} minutes, more nodes fewer."
        )
    except ImportError:
        fail("scikit-learn is missing: pip install 'slowrank-server[science]'")
    try:
        output.write_bytes(msgspec.json.format(msgspec.json.encode(region)))
    except OSError as error:
        fail(f"{output}: cannot be written ({error.strerror})")
    typer.secho(f"{output}: {len(region.features)} features, threshold {region.threshold:.1f}", err=True)


def load_region(path: Path) -> "Envelope":
    """Return the model in a file that ``gray`` wrote; exit when it is not one."""
    from streams.cluster.gray_model import read_region

    try:
        return read_region(path)
    except ValueError as error:
        fail(str(error))
