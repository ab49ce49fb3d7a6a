import pytest

from benchmarks.scale import workers


def test_the_rate_is_that_until_all_is_done():
    """A worker that has taken its share and waits for another counts."""
    looks = [(5.0, 100, (1.0, 1.0)), (10.0, 700, (2.0, 3.0)), (25.0, 1100, (2.0, 6.0))]
    found = workers.rate([workers.Look(*look) for look in looks], [300, 900])
    assert found == (50.0, 0.006, (0.25, 0.75), (0.05, 0.25))


@pytest.mark.parametrize("looks", [[(0.0, 0, (0.0,)), (9.9, 100, (1.0,))], [(0.0, 100, (0.0,))]])
def test_a_backlog_that_is_gone_at_once_is_too_small(looks):
    with pytest.raises(ValueError, match="too fast to measure: take more --nodes"):
        workers.rate([workers.Look(*look) for look in looks], [100])


def test_workers_are_compared_with_one(capsys):
    with pytest.raises(SystemExit):
        workers.main(["--workers", "2,4"])
    assert "begin with 1" in capsys.readouterr().err
