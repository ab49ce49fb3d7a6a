"""How many ranks in a row likely share a node that no row names."""

import pytest

from streams.job.likely_nodes import likely_nodes
from streams.job.rows.step_rows import Identity


def job(ranks, local=None, tensor_parallel=None):
    """Return the identities of ``ranks``; ``tensor_parallel`` gives (dp, tp) of each."""

    def place(rank):
        dp, tp = tensor_parallel(rank) if tensor_parallel else (0, 0)
        coords = (("dp", dp), ("tp", tp)) if tensor_parallel else ()
        return Identity("", None if local is None else local(rank), None, coords, "")

    return {rank: place(rank) for rank in ranks}


@pytest.mark.parametrize(("world", "size"), [(16, 8), (64, 8), (20, 4), (12, 4), (8, 0), (4, 0), (18, 0)])
def test_without_local_ranks_it_is_a_divisor_of_eight(world, size):
    """Of a job that one node of eight may hold, or that leaves no four of them, nothing is known."""
    assert likely_nodes(job(range(world)), world).size_of(5) == size


@pytest.mark.parametrize(("local", "size"), [(lambda r: r % 4, 4), (lambda r: r // 2, 0), (lambda r: 0, 0)])
def test_local_ranks_tell_how_many(local, size):
    """Where they go round rank by rank, as many as they are; dealt out over the nodes, none are in a row."""
    assert likely_nodes(job(range(16), local), 16).size_of(5) == size


def test_a_block_of_which_ranks_are_missing_is_none():
    """Where only some ranks log, the others cannot show that they are well."""
    assert likely_nodes(job(range(0, 16, 2)), 16).size_of(1) == 0


@pytest.mark.parametrize(
    ("tensor_parallel", "size"), [(lambda r: (r // 4, r % 4), 8), (lambda r: (r % 8, r // 8), 0)]
)
def test_a_tensor_parallel_group_is_within_its_node(tensor_parallel, size):
    """Groups that go beyond eight ranks in a row show that these are no node."""
    assert likely_nodes(job(range(16), None, tensor_parallel), 16).size_of(5) == size
