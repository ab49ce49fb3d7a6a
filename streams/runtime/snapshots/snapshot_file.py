"""One snapshot in one file: checked when it is read, replaced as a whole when it is written.

The file is a magic number, the SHA-256 of all that follows, a header in JSON and the state, compressed with
zstd. The checksum finds damage, not forgery: against that stand the file's owner and mode, which are those of
the worker, and the list of what the state may consist of (``state_codec``).
"""

import hashlib
import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import cramjam
import msgspec

# With the version of the layout of the file.
MAGIC = b"slowrank snapshot 1\n"

_LENGTH = struct.Struct("<I")
_SUM_BYTES = hashlib.sha256().digest_size

# Of zstd. Measured: level 3 takes twice the time for 4 % less.
LEVEL = 1

Reason = Literal["unsafe", "damaged", "foreign", "resized", "old", "ahead", "other_log", "unreadable"]
"""Why a snapshot is not used: who may write the file, a wrong checksum, other code or settings, another
number of partitions, more of the log to read than without it, far past what is committed, a log that does not
hold its last message, a state that cannot be taken."""


class Refused(Exception):
    """A snapshot that is not used."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason: Reason = reason


class Mark(msgspec.Struct, frozen=True):
    """The last message in a state, by which the log is recognised: offset, log time (Unix s), digest."""

    offset: int
    timestamp: float
    digest: str


class Header(msgspec.Struct, frozen=True):
    """What a snapshot is of.

    ``identity`` is that of code and settings, ``place`` the partition, ``partitions`` how many the topic had,
    ``next_offset`` the offset of the first message that is not in the state, ``taken_at`` in Unix seconds.
    """

    identity: str
    place: str
    partitions: int
    next_offset: int
    last: Mark
    taken_at: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A header and the bytes of a state."""

    header: Header
    state: bytes


def write(path: Path, snapshot: Snapshot) -> int:
    """Replace the file at once; return its bytes. Raises ``OSError``.

    It is not synced: after a power failure it may be damaged, which its checksum shows.
    """
    header = msgspec.json.encode(snapshot.header)
    body = bytes(cramjam.zstd.compress(snapshot.state, level=LEVEL))
    content = b"".join((_LENGTH.pack(len(header)), header, body))
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(
            os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb"
        ) as f:
            for piece in (MAGIC, hashlib.sha256(content).digest(), content):
                f.write(piece)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    return len(MAGIC) + _SUM_BYTES + len(content)


def read(path: Path) -> Snapshot | None:
    """Return the snapshot in a file, None if there is no file. Raises ``Refused``."""
    try:
        content = _own_bytes(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Refused("unreadable", str(error)) from error
    if not content.startswith(MAGIC):
        raise Refused("foreign", "no snapshot of this version")
    rest = content[len(MAGIC) + _SUM_BYTES :]
    if hashlib.sha256(rest).digest() != content[len(MAGIC) : len(MAGIC) + _SUM_BYTES]:
        raise Refused("damaged", "the checksum differs")
    try:
        (length,) = _LENGTH.unpack_from(rest)
        header = msgspec.json.decode(rest[_LENGTH.size : _LENGTH.size + length], type=Header)
        state = bytes(cramjam.zstd.decompress(rest[_LENGTH.size + length :]))
    except (struct.error, msgspec.DecodeError, cramjam.DecompressionError) as error:
        raise Refused("damaged", str(error)) from error
    return Snapshot(header, state)


def _own_bytes(path: Path) -> bytes:
    """Return what is in a file that only this user can have written."""
    # Without O_NONBLOCK a pipe of that name would be waited for.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    with os.fdopen(os.open(path, flags), "rb") as f:
        info = os.fstat(f.fileno())
        if not stat.S_ISREG(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o022:
            raise Refused("unsafe", f"mode {stat.filemode(info.st_mode)} of user {info.st_uid}")
        return f.read()
