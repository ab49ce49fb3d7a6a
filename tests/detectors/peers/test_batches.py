"""Ranks that report the same amounts step after step work on one batch."""

import numpy as np
import pytest

from detectors.peers.batches import Batches

RANKS = 32
NODES = np.arange(RANKS) // 8
# Eight replicas of two stages of two ranks: Megatron-LM's order and the other one.
DATA_FIRST, STAGE_FIRST = np.arange(RANKS) // 2 % 8, np.arange(RANKS) // 4


def reported(replica, *, steps=5, lost=0.0, seed=1):
    """Return tokens [steps, ranks] that the ranks of a replica report alike, with lost rows."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(3000, 5000, (steps, int(replica.max()) + 1)).astype(float)[:, replica]
    return np.where(rng.random(tokens.shape) < lost, np.nan, tokens)


@pytest.mark.parametrize("replica", [DATA_FIRST, STAGE_FIRST], ids=["data first", "stage first"])
def test_ranks_of_one_replica_are_found_though_rows_are_missing(replica):
    """A step that a rank did not report shows nothing of it."""
    found = Batches.from_amounts(NODES, reported(replica, steps=10, lost=0.1), np.full((10, RANKS), np.nan))
    assert found is not None
    assert np.array_equal(found.replica[:, None] == found.replica, replica[:, None] == replica)


def test_an_infinite_amount_is_as_one_that_was_not_reported():
    """The other steps of the rank tell its replica."""
    tokens = reported(STAGE_FIRST)
    tokens[1, 3], tokens[2, 9] = np.inf, -np.inf
    found = Batches.from_amounts(NODES, tokens)
    assert found is not None
    assert found.replica[3] == found.replica[0]
    assert found.replica[9] == found.replica[8]


@pytest.mark.parametrize(
    "tokens",
    [
        np.full((5, RANKS), 4096.0),
        np.full((5, RANKS), np.nan),
        reported(np.arange(RANKS)),
        reported(STAGE_FIRST, steps=2),
        reported(np.minimum(STAGE_FIRST, 6)),
        np.where(np.arange(RANKS) == 3, np.nan, reported(STAGE_FIRST)),
    ],
    ids=["all alike", "not reported", "each its own", "two steps", "unequal sets", "one rank not reported"],
)
def test_amounts_that_do_not_show_replicas(tokens):
    """Replicas have as many ranks each, two or more."""
    assert Batches.from_amounts(NODES, tokens) is None


@pytest.mark.parametrize(
    ("slow", "ruled_out"),
    [
        (NODES == 2, True),
        (STAGE_FIRST == 5, True),
        ((NODES == 2) | (np.arange(RANKS) == 0), True),
        (np.arange(RANKS) % 4 >= 2, False),
        (STAGE_FIRST % 4 == 1, False),
        (np.zeros(RANKS, dtype=bool), False),
    ],
    ids=["machine", "replica", "machine and a rank", "stage", "expert of two replicas", "none"],
)
def test_what_one_machine_or_replica_has_is_no_stage(slow, ruled_out):
    """A stage has ranks in all replicas, an expert in several, on as many machines."""
    assert Batches(STAGE_FIRST, NODES).rule_out_stage(slow) == ruled_out


def test_on_one_machine_nothing_is_ruled_out():
    """Whatever is slow there is on it."""
    assert not Batches(STAGE_FIRST, np.zeros(RANKS, dtype=np.intp)).rule_out_stage(STAGE_FIRST % 4 == 1)
