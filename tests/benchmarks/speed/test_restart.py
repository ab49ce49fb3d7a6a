"""The benchmark of restarts, small."""

import pytest

from benchmarks.speed import restart


@pytest.mark.slow
def test_all_workers_find_the_same_and_snapshots_need_less(capsys):
    """With and without snapshots the suspicions are those of the worker that was not killed."""
    assert restart.main(["--nodes", "32", "--seconds", "150"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if "yes, " in line]
    assert len(rows) == 2
    from_snapshots, from_log = (float(row.split("|")[2]) for row in rows)
    assert from_snapshots < from_log
