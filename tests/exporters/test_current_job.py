import pytest

from exporters.collector import StepRows
from exporters.current_job import JOB_SECONDS, CurrentJob


def steps(job, *places, column="gpu_index"):
    rows = tuple({"rank": 8 + place, column: place} for place in places)
    return StepRows(job_id=job, attempt=0, world_size=8, labels={}, rows=rows)


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        pytest.param([], None, id="no job"),
        pytest.param([(0, steps("a", 0, 1))], "a", id="one job"),
        pytest.param([(0, steps("a", 0)), (1, steps("b", 1))], None, id="a job on each of two GPUs"),
        pytest.param([(0, steps("a", 0, 1)), (1, steps("b", 1))], "b", id="the next job on the same GPU"),
        pytest.param(
            [(0, steps("a", 0, column="local_rank")), (1, steps("b", 0, column="local_rank"))],
            "b",
            id="the next job on a host without GPUs",
        ),
        pytest.param(
            [(0, steps("a", 0)), (1, steps("b", 0)), (2, steps("a", 0))], None, id="two jobs share a GPU"
        ),
        pytest.param([(0, steps("a", 0)), (0, steps("b", 0))], None, id="two jobs in one tick"),
        pytest.param(
            [(0, steps("a", 0)), (1, steps("b", 0)), (2, steps("a", 0)), (3, steps("c", 0))],
            "c",
            id="one job after two",
        ),
        pytest.param([(0, steps("a", 0)), (JOB_SECONDS, None)], None, id="a job that has ended"),
    ],
)
def test_the_job_of_a_node_is_the_last_one_that_reports_from_its_gpus(reports, expected):
    current = CurrentJob()
    for seconds, rows in reports:
        current.update([] if rows is None else [rows], seconds)
    assert current.job_id() == expected
