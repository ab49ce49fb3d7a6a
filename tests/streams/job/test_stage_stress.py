"""JobStage on random jobs: sizes, layouts, step lengths, noise and gaps drawn by seed."""

import pytest

from benchmarks.speed.stress import SCENARIOS, run

HEALTHY = ["healthy", "common change", "long stage", "packed, healthy"]
PIPELINE = "packed pipeline, healthy"


@pytest.mark.slow
@pytest.mark.parametrize("name", HEALTHY)
def test_names_no_rank_in_jobs_without_a_slow_rank(name):
    """No rank is believed slow; imbalance is a finding about the job alone."""
    tally = run(name, 5, 77)
    assert tally.wrong == 0
    expected = {"long stage": {"imbalance.stage": 5}, "packed, healthy": {"imbalance.workload": 5}}
    assert {k: n for k, n in tally.verdicts.items() if k != "hang.job"} == expected.get(name, {})


@pytest.mark.slow
def test_names_no_rank_in_a_healthy_packed_pipeline():
    """Batches that all stages of a replica share make no rank suspect, and give at most a finding about the
    job.
    """
    tally = run(PIPELINE, 5, 77)
    assert tally.wrong == 0
    assert set(tally.verdicts) <= {"imbalance.workload"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in SCENARIOS if n not in (*HEALTHY, PIPELINE, "one rank x1.03")])
def test_names_the_slow_ranks_and_no_others(name):
    """Slow ranks are named, and no others; onsets are off by a step or two and in their intervals."""
    tally = run(name, 5, 77)
    assert tally.named / tally.bad >= 0.95
    assert tally.wrong == 0
    # The first steps of a ramp of ten are slower by less than the noise.
    allowed = 5 if "ramp" in name else 2
    assert sorted(abs(e) for e in tally.onset_errors)[len(tally.onset_errors) // 2] <= allowed
    assert sum(tally.onset_covered) / len(tally.onset_covered) >= 0.6
