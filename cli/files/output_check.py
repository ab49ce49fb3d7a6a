"""Check the output file of a command before it reads hours of records."""

from collections.abc import Iterable
from pathlib import Path

from cli.remote.client import fail


def check_output(output: Path, inputs: Iterable[Path]) -> None:
    """Exit where ``output`` is one of the ``inputs``, or cannot be a file."""
    if any(_same(output, file) for file in inputs):
        fail(f"{output} is an input file. Give another file with -o.")
    if not _can_be_file(output):
        fail(f"{output} is a folder, or its folder does not exist. Give another file with -o.")


def _can_be_file(output: Path) -> bool:
    try:
        return output.parent.is_dir() and not output.is_dir()
    except OSError:
        return False


def _same(output: Path, file: Path) -> bool:
    try:
        return output.samefile(file)
    except OSError:
        # One of them does not exist or cannot be read; reading or writing it reports why.
        return False
