"""Where a command may write: looked at before hours of records are gone through in vain."""

from collections.abc import Iterable
from pathlib import Path

from slowrank.cli.remote import fail


def check_output(output: Path, inputs: Iterable[Path]) -> None:
    """End the command where ``output`` is one of its ``inputs``, or can be no file."""
    if any(_same(output, file) for file in inputs):
        fail(f"{output}: is read from; -o needs another file.")
    if not _is_place(output):
        fail(f"{output}: is no file in a folder that exists; -o needs one.")


def _is_place(output: Path) -> bool:
    try:
        return output.parent.is_dir() and not output.is_dir()
    except OSError:
        return False


def _same(output: Path, file: Path) -> bool:
    try:
        return output.samefile(file)
    except OSError:
        # One of them is not there or cannot be looked at; reading or writing it says what is wrong.
        return False
