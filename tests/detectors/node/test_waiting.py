import numpy as np
import pytest

from detectors.node.waiting import Signs, WaitingBank, Waits

NODE = np.array([0])


def signs(state: str) -> Signs:
    """What a sample shows of a node that works, waits, stands idle or was left by its job."""
    shown = {
        "work": (False, False, True, False),
        "wait": (True, True, False, False),
        "idle": (False, True, False, False),
        "ended": (False, False, False, True),
    }[state]
    wait, rest, work, ended = (np.array([flag]) for flag in shown)
    return Signs(wait=wait, rest=rest, work=work, ended=ended)


def run(*spells: tuple[str, float], every: float = 30.0) -> list[tuple[float, Waits]]:
    """Return what one node shows over spells of (state, seconds), with the time of each sample."""
    bank, ts, out = WaitingBank(1), 0.0, []
    for state, seconds in spells:
        end = ts + seconds
        while ts < end:
            out.append((ts, bank.update(NODE, np.array([ts]), signs(state))))
            ts += every
    return out


def first_stuck(out: list[tuple[float, Waits]]) -> tuple[float, float] | None:
    """When the node was first stuck, and since when."""
    found = ((ts, float(seen.stuck_since[0])) for ts, seen in out)
    return next(((ts, since) for ts, since in found if np.isfinite(since)), None)


@pytest.mark.parametrize("every", [1.0, 15.0, 30.0, 60.0])
def test_a_wait_of_three_minutes_is_stuck_at_any_resolution(every):
    """Found with the first sample three minutes after the one that shows it first."""
    assert first_stuck(run(("work", 1200), ("wait", 600), every=every)) == (1380.0, 1200.0)


@pytest.mark.parametrize(
    ("spells", "expected"),
    [
        ([("work", 1200), ("wait", 170), ("work", 600)], None),
        ([("work", 1200), ("wait", 150), ("work", 600), ("wait", 600)], (2250.0, 1950.0)),
        ([("work", 1200), ("wait", 600), ("ended", 60), ("work", 600), ("wait", 200)], (1380.0, 1200.0)),
        ([("work", 300), ("wait", 1200)], None),
        ([("wait", 1200)], None),
        ([("work", 1200), ("idle", 1200)], None),
        ([("work", 1200), ("ended", 1200)], None),
    ],
    ids=["barrier", "longer-than-twice-a-pause", "hang", "young-job", "start", "data-stall", "end"],
)
def test_only_what_no_pause_explains_is_stuck(spells, expected):
    """A hang is; pauses, starts, data stalls and ends are not, and a pause takes twice its length next."""
    assert first_stuck(run(*spells)) == expected


def test_a_wait_that_the_processes_did_not_outlive_is_no_pause():
    """After a hang the next one takes no longer to be found."""
    out = run(("work", 1200), ("wait", 600), ("ended", 60), ("work", 600), ("wait", 300))
    again = [ts for ts, seen in out if seen.stuck_since[0] == 2460.0]
    assert again[0] == 2640.0


def test_one_sample_of_work_is_no_end_of_a_wait():
    """A reading that is off interrupts nothing; work that goes on ends it."""
    out = run(("work", 1200), ("wait", 300), ("work", 30), ("wait", 60), ("work", 60))
    stuck = [bool(np.isfinite(seen.stuck_since[0])) for _, seen in out]
    assert stuck[46:] == [True] * 8 + [False]


def test_idle_gpus_rest():
    """Beside stuck nodes they show that nobody works."""
    seen = run(("work", 1200), ("idle", 210))[-1][1]
    assert float(seen.resting_since[0]) == 1200.0
