"""Create a folder that only this user or root owns. Imports no Kafka client: ``slowrank up`` has none."""

import os
from pathlib import Path


class Unprepared(Exception):
    """Something that the operator creates is missing; the message has the command."""


def make_private(folder: Path) -> None:
    """Create a folder of our files. Raises ``Unprepared`` where another user owns it.

    The default is a predictable name in the temporary directory: another user who created it first could
    redirect our writes by symbolic links.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    owners = {folder.lstat().st_uid, folder.stat().st_uid}
    if not owners <= {os.geteuid(), 0}:
        raise Unprepared(
            f"{folder} belongs to another user, and our files would be written there. Remove it, or choose "
            "another folder: SLOWRANK_STREAMS_RUNTIME_DIR for stream workers, --data for slowrank up."
        )
