"""The boards of GPUs in labels, and on subjects."""

import pytest

from slowrank.telemetry import Subject
from slowrank.telemetry.hardware.boards import board_label, boards_in, on_board


@pytest.mark.parametrize(
    ("gpu", "serial", "expected"),
    [
        ("3", "1653", {"gpu.3": "GPU-3f1c/1653"}),
        ("3", None, {"gpu.3": "GPU-3f1c"}),
        ("GPU-3f1c", "1653", {}),
        ("16", None, {}),
    ],
)
def test_a_label_names_the_board_of_a_gpu_with_an_index(gpu, serial, expected):
    """Of sixteen GPUs at most; one that is named by its UUID needs none."""
    assert board_label(gpu, "GPU-3f1c", serial) == expected


def test_a_subject_has_the_board_that_its_node_names():
    """A rank has that of its GPU; what already names one, or none is known of, stays as it is."""
    boards = boards_in({"rack": "r1", **board_label("3", "GPU-a", "16"), **board_label("4", "GPU-b")})
    rank = Subject(type="gpu", cluster="c", node="n", gpu_index=3, rank=11)
    named, other = on_board(rank, boards), Subject(type="gpu", cluster="c", node="n", gpu_index=4)
    assert (named.gpu_uuid, named.serial, named.rank) == ("GPU-a", "16", 11)
    assert (on_board(other, boards).gpu_uuid, on_board(other, boards).serial) == ("GPU-b", None)
    unknown = [
        Subject(type="node", cluster="c", node="n"),
        Subject(type="gpu", cluster="c", gpu_uuid="GPU-x"),
    ]
    assert [on_board(s, boards) for s in unknown] == unknown
