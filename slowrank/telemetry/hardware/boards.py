"""The boards of a node's GPUs: UUID and serial number, which follow a board to another node.

A sample names them in labels, ``gpu.3`` with the value ``UUID/serial`` or, where the serial number is not
known, ``UUID``. They need not be in every sample: what a node said last holds.
"""

from collections.abc import Mapping

import msgspec

from slowrank.telemetry.records import Subject

_PREFIX = "gpu."

# GPUs of a node whose boards are named. Chosen: those of the largest servers; a sample has 32 labels.
MOST_BOARDS = 16


def board_label(gpu: str, uuid: str, serial: str | None = None) -> dict[str, str]:
    """Return the label that names the board of ``gpu``; none for a GPU that is named by its UUID.

    >>> board_label("3", "GPU-3f1c", "1653")
    {'gpu.3': 'GPU-3f1c/1653'}
    """
    if not gpu.isdecimal() or int(gpu) >= MOST_BOARDS or not uuid:
        return {}
    return {f"{_PREFIX}{gpu}": f"{uuid}/{serial}" if serial else uuid}


def boards_in(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the boards that labels name, by GPU."""
    return {name.removeprefix(_PREFIX): at for name, at in labels.items() if name.startswith(_PREFIX)}


def on_board(subject: Subject, boards: Mapping[str, str]) -> Subject:
    """Return a subject that names a GPU by its index with the UUID and serial number of its board."""
    board = boards.get(str(subject.gpu_index))
    if board is None or subject.gpu_uuid is not None:
        return subject
    uuid, _, serial = board.partition("/")
    return msgspec.structs.replace(subject, gpu_uuid=uuid, serial=serial or subject.serial)
