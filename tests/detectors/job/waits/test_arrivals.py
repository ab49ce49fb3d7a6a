import pytest

from detectors.job.waits.arrivals import Awaited, awaited

NODES = {rank: rank // 2 for rank in range(8)}
WAITING = dict.fromkeys(range(8), "wait")


def without(*ranks):
    return {rank: phase for rank, phase in WAITING.items() if rank not in ranks}


@pytest.mark.parametrize(
    ("phases", "expected"),
    [
        (without(5), Awaited(silent=(5,))),
        (WAITING | {5: "compute"}, Awaited(elsewhere=(5,))),
        (WAITING | {5: "", 6: "data"}, Awaited(elsewhere=(5, 6))),
        (without(5) | {1: ""}, Awaited(elsewhere=(1,), silent=(5,))),
        (WAITING | {5: "comm"}, Awaited()),
        (WAITING | {0: "checkpoint"}, Awaited()),
        (dict.fromkeys(range(8), ""), Awaited()),
        (without(0, 1, 2, 3), Awaited()),
        ({}, Awaited()),
    ],
)
def test_those_are_named_that_the_others_wait_for(phases, expected):
    """Where more than half wait, and nobody writes a checkpoint."""
    assert awaited(phases, NODES, range(8)) == expected


def test_a_silent_node_is_named_only_where_nobody_else_is():
    """Its telemetry may be lost while another rank is the one that is waited for."""
    assert awaited(without(4, 5), NODES, range(8)) == Awaited(silent=(4, 5))
    assert awaited(without(4, 5) | {1: ""}, NODES, range(8)) == Awaited(elsewhere=(1,))


def test_the_ranks_are_ascending():
    """Whichever the reason."""
    assert Awaited(elsewhere=(5,), silent=(1, 7)).ranks == (1, 5, 7)
