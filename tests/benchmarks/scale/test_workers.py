import pytest

from benchmarks.scale import workers


def test_the_rate_is_that_of_the_middle():
    """Neither how work begins nor the last partitions count."""
    looks = [(0.0, 5, 1.0), (1.0, 20, 2.0), (2.0, 30, 2.5), (4.0, 50, 5.0), (5.0, 90, 5.5)]
    assert workers.middle(looks, 100) == (10.0, 0.1)


@pytest.mark.parametrize("looks", [[], [(0.0, 0, 0.0), (0.5, 40, 1.0), (1.0, 40, 1.5), (1.5, 100, 2.0)]])
def test_a_backlog_that_is_gone_at_once_is_too_small(looks):
    with pytest.raises(ValueError, match="too fast to measure: take more --nodes"):
        workers.middle(looks, 100)


def test_workers_are_compared_with_one(capsys):
    with pytest.raises(SystemExit):
        workers.main(["--workers", "2,4"])
    assert "begin with 1" in capsys.readouterr().err
