"""A slow tensor-parallel group gives the same bytes however its step rows travel."""

import pytest

from benchmarks.detection.step_jobs import records
from tests.streams.files.test_backtest_jobs import tensor_parallel
from tests.streams.partitions import Workers, in_one, regrouped, shuffled


@pytest.mark.parametrize(("seconds", "lateness", "partitions"), [(0.0, 0.9, 0), (2.0, 0.5, 0), (0.5, 0.0, 3)])
def test_batches_order_and_partitions_change_nothing(seconds, lateness, partitions):
    """Slow, well and slow again: cut into other records, sent in another order, over partitions."""
    told = list(records(tensor_parallel({9: 1.2}, begin=60, end=110)))[: 4 * 160]
    found = in_one(told)
    travelled = shuffled(regrouped(told, seconds), lateness, 7)
    assert len(found.splitlines()) == 1
    assert found == (Workers(partitions).findings(travelled) if partitions else in_one(travelled))
