from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from servers.process import free_ports

from benchmarks.rig.ring import Ring


@pytest.fixture
def together():
    """Run a function of (ring, rank) on connected ranks; return what each gave."""

    def run(size, work):
        addresses = [("127.0.0.1", port) for port in free_ports(size)]
        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(lambda rank: _closed(Ring(rank, addresses), rank, work), range(size)))

    def _closed(ring, rank, work):
        try:
            return work(ring, rank)
        finally:
            ring.close()

    return run


@pytest.mark.parametrize("size", [2, 3, 5])
def test_every_rank_has_the_mean(together, size):
    """Of vectors whose length is no multiple of the number of ranks."""
    values = [np.arange(11, dtype=np.float32) * (rank + 1) for rank in range(size)]
    means = together(size, lambda ring, rank: ring.mean(values[rank]))
    for mean in means:
        np.testing.assert_allclose(mean, np.mean(values, axis=0), rtol=1e-6)


def test_a_barrier_lets_nobody_pass_before_all_are_there(together):
    """Those that come first see what the last one did before."""
    seen: list[int] = []

    def work(ring, rank):
        seen.append(rank)
        ring.barrier()
        return len(seen)

    assert together(4, work) == [4] * 4


def test_a_lost_neighbour_is_an_error(together):
    """The rank behind it learns that it is gone."""

    def work(ring, rank):
        if rank == 0:
            return None
        with pytest.raises(ConnectionError):
            ring.barrier()
        return True

    assert together(2, work) == [None, True]
