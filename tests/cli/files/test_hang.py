"""``slowrank hang`` names the ranks that a job waits for, from a folder of dumps."""

import pytest
import typer
from typer.testing import CliRunner

from cli.files.hang import hang
from tests.exporters.dumps.trace import entry, write

ENDED = entry("0", "nccl:all_reduce", 99)
WAITS = entry("0", "nccl:all_reduce", 100, "started")


def run(folder):
    app = typer.Typer()
    app.command()(hang)
    return CliRunner().invoke(app, [folder])


def dumps_of(folder, special):
    """Eight ranks, of which those not in ``special`` wait in collective 100."""
    for rank in range(8):
        entries = special.get(rank, [ENDED, WAITS])
        if entries is not None:
            write(folder, rank, entries, {"0": range(8)})
    return str(folder)


def test_the_rank_that_has_not_arrived_is_named(tmp_path):
    """With the line of the training code that it last called from."""
    found = run(dumps_of(tmp_path, {5: [ENDED]}))

    assert found.exit_code == 0
    assert found.stdout.splitlines() == [
        "all_reduce 100 (1000 elements) of group 0, ranks 0-7: waiting in it: 7",
        "  not issued by 5",
        "  cause: 5, for which the others wait",
        "  last of rank 5: all_reduce 99 of group 0, which ended, at /home/u/train.py:141",
    ]


@pytest.mark.parametrize(
    ("special", "line"),
    [
        ({5: [ENDED, entry("0", "nccl:broadcast", 100, "started")]}, "rank 5 has issued broadcast 100"),
        ({5: None}, "  no dump of 5"),
        ({5: [entry("0", "nccl:all_reduce", 100, "scheduled")]}, "the GPU is at earlier work, by 5"),
        ({}, "all have arrived"),
    ],
)
def test_other_ways_to_stand_still(tmp_path, special, line):
    """Ranks in different collectives, one that left nothing, one whose GPU is busy, and a network that is."""
    assert line in run(dumps_of(tmp_path, special)).stdout


def test_a_job_that_works_does_not_hang(tmp_path):
    """Dumps may be asked for at any time."""
    found = run(dumps_of(tmp_path, {rank: [ENDED] for rank in range(8)}))

    assert found.stdout == "8 ranks: every operation has ended\n"


def test_files_that_are_no_dumps_are_named(tmp_path):
    """Those around them are used; without any the command fails."""
    folder = tmp_path / "dumps"
    folder.mkdir()
    (folder / "notes.txt").write_text("none")
    (folder / "nccl_trace_rank_0").write_text("none")
    assert run(str(folder)).exit_code == 2

    dumps_of(folder, {0: None, 5: [ENDED]})
    found = run(str(folder))
    assert "cause: 5" in found.stdout
    assert "nccl_trace_rank_0: " in found.stderr


def test_a_file_that_is_not_there_is_named_as_such(tmp_path):
    """Whatever its name ends with."""
    found = run(str(tmp_path / "dumps"))

    assert found.exit_code == 2
    assert "No such file" in found.stderr
