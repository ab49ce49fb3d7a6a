"""A folder that only this user can have made. Without a Kafka client, as ``slowrank up`` keeps one, too."""

import os
from pathlib import Path


class Unprepared(Exception):
    """Something that the operator creates is missing; the message has the command."""


def make_private(folder: Path) -> None:
    """Create the folder of the worker's files. Raises ``Unprepared`` where another user owns it.

    The default is a predictable name in the temporary directory: another user who created it first could
    redirect our writes by symbolic links.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    owners = {folder.lstat().st_uid, folder.stat().st_uid}
    if not owners <= {os.geteuid(), 0}:
        raise Unprepared(
            f"{folder} belongs to another user, and files of this worker would be written there. Remove it, "
            "or choose another folder with SLOWRANK_STREAMS_RUNTIME_DIR."
        )
