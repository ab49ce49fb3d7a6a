"""Output of rows to a file, compressed if its name ends in .gz, or to stdout."""

import contextlib
import errno
import gzip
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

# Suffixes by which a reader would expect another format than NDJSON.
FOREIGN = (".csv", ".parquet", ".pq", ".zst", ".zstd")


@contextlib.contextmanager
def opened(output: Path) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """Open ``output`` to write NDJSON to; ``-`` is stdout, which stays open. Raises ``OSError``."""
    foreign = next((suffix for suffix in output.suffixes if suffix.lower() in FOREIGN), None)
    if foreign is not None:
        reason = f"rows are written as NDJSON, not {foreign}: name it .ndjson or .ndjson.gz"
        raise OSError(errno.EINVAL, reason, str(output))
    if str(output) == "-":
        yield sys.stdout.buffer
    elif output.suffix.lower() == ".gz":
        with gzip.open(output, "wb") as packed:
            yield packed
    else:
        with output.open("wb") as plain:
            yield plain
