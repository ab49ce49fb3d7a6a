"""The notifier under kills, in small: `python -m benchmarks delivery` is the whole."""

import random

import pytest

from api.delivery.receivers.registry import RECEIVERS as FORMATS
from benchmarks.database import own_database
from benchmarks.delivery.command import Run, run
from benchmarks.delivery.feed import plan
from benchmarks.delivery.states import RECEIVERS


def test_every_format_is_tried():
    """A new format needs a model of what its receiver shows."""
    assert set(RECEIVERS) == {format.name for format in FORMATS}


def test_every_finding_has_a_life():
    """Each begins with its opening; later steps come later, and most occur."""
    steps = plan(200, 60.0, random.Random(1))
    assert [step.at for step in steps] == sorted(step.at for step in steps)
    lives = {n: [step.step for step in steps if step.number == n] for n in range(200)}
    assert {life[0] for life in lives.values()} == {"open"}
    assert {life[-1] for life in lives.values()} == {"open", "escalate", "acknowledge", "resolve", "reopen"}


@pytest.mark.slow
def test_receivers_end_with_the_truth_when_the_notifier_is_killed():
    """Sixty findings and four kills: last states, order, and ids of duplicates are right at all receivers."""
    with own_database() as dsn:
        result = run(dsn, Run(findings=60, kills=4, seconds=12.0, fault=0.02, drain_seconds=120.0, seed=3))
    assert result.broken == []
    # About every second kill cuts a delivery off, which four kills need not.
    assert len(result.cut_off) == 4
    assert result.deliveries["delivered"] > len(RECEIVERS) * 60
