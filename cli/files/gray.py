"""``slowrank gray``: learn from recorded telemetry how healthy nodes look beside each other."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slowrank.cli.outputs import check_output
from slowrank.cli.remote import fail

if TYPE_CHECKING:
    from detectors.multivariate import Envelope


def gray(
    files: Annotated[list[Path], typer.Argument(help="Node samples of hours in which nothing was wrong.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="File for the model.")] = Path("gray.json"),
) -> None:
    """Fit the healthy region of nodes over all their features (needs scikit-learn, extra science)."""
    import msgspec

    from detectors.multivariate import MIN_WINDOWS_PER_FEATURE
    from streams.file_records import read_records
    from streams.files import FileProblem
    from streams.gray_region import fit
    from streams.gray_windows import MIN_NODES
    from streams.readings import FEATURES

    check_output(output, files)
    try:
        region = fit(read_records(files).records)
    except FileProblem as error:
        fail(str(error))
    except ValueError as error:
        fail(
            f"{error}. A window is a node's minute, and {MIN_NODES} nodes or more make one together: "
            f"{MIN_NODES} nodes of {len(FEATURES)} features need "
            f"{-(-MIN_WINDOWS_PER_FEATURE * len(FEATURES) // MIN_NODES)} minutes, more nodes fewer."
        )
    except ImportError:
        fail("scikit-learn is missing: pip install 'slowrank[science]'")
    try:
        output.write_bytes(msgspec.json.format(msgspec.json.encode(region)))
    except OSError as error:
        fail(f"{output}: cannot be written ({error.strerror})")
    typer.secho(f"{output}: {len(region.features)} features, threshold {region.threshold:.1f}", err=True)


def load_region(path: Path) -> "Envelope":
    """Return the model in a file that ``gray`` wrote; ends the command when it is none."""
    from streams.gray_region import read_region

    try:
        return read_region(path)
    except ValueError as error:
        fail(str(error))
