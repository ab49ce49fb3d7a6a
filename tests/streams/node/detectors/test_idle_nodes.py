import pytest

from slowrank.telemetry import HangVote
from streams.node.stage import NodeStage
from tests.streams.node.node_samples import node_sample

IDS = ("0", "1")


class Node:
    """One node under a stage of its own, with a port that sends and receives half a gigabyte a second."""

    def __init__(self):
        self.stage, self.boot, self.sent = NodeStage(), "b", 0

    def update(self, ts, *, watts, nic, job, ids=IDS, ended=False, ahead=None):
        """What the node says of its quiet and of its job's end."""
        self.sent += int(nic / 2)
        gpu = {
            "gpu.power_watts": watts,
            "gpu.utilization_ratio": 0.0 if ended else 1.0,
            "gpu.memory.used_bytes": 0.0 if ended else 8e9,
            "gpu.memory.total_bytes": 1e10,
        }
        port = {"nic.port.rx_bytes_total": self.sent, "nic.port.tx_bytes_total": self.sent}
        host = None if ahead is None else {"host.clock_offset_seconds": ahead}
        gpus = [gpu] * len(ids)
        sample = node_sample(ts, gpus=gpus, gpu_ids=ids, ports=[port], host=host, job=job, boot=self.boot)
        found = (s for s in self.stage.process(sample) if isinstance(s, HangVote))
        return [s for s in found if s.signal in ("idle", "left")]


def run(node, seconds, *, hang=False, job="j", ids=IDS):
    """States, times and onsets of what the node says of its quiet."""
    return [
        (s.state, s.ts, s.onset)
        for s in heard(node, seconds, hang=hang, job=job, ids=ids)
        if s.signal == "idle"
    ]


def heard(node, seconds, *, hang=False, job="j", ids=IDS, ended=False, ahead=None):
    found = []
    for ts in seconds:
        watts, nic = (250.0, 0.0) if hang else (600.0, 1e9)
        found += node.update(ts, watts=watts, nic=nic, job=job, ids=ids, ended=ended, ahead=ahead)
    return found


def test_a_quiet_node_votes_for_a_hang_of_its_job():
    """Raised after five seconds, again when it lasts, refreshed, cleared ten seconds after work went on."""
    node = Node()
    assert run(node, range(100)) == []
    assert run(node, range(100, 200), hang=True) == [("raise", 105.0, 100.0), ("update", 150.0, 100.0)]
    assert run(node, range(200, 260)) == [("clear", 210.0, 100.0)]


def test_a_vote_says_when_both_keys_have_lasted():
    """A checkpoint keeps a node from sending and computing for a while, a hang for longer."""
    node = Node()
    run(node, range(100))
    said = heard(node, range(100, 160), hang=True)
    idle = [(s.ts, s.both_signs, s.lasting) for s in said if s.signal == "idle"]
    assert idle == [(105.0, True, False), (150.0, True, True)]


@pytest.mark.parametrize(("ahead", "told"), [(None, []), (0.02, []), (6.0, [6.0])])
def test_a_vote_says_that_its_clock_is_off(ahead, told):
    """Then its moment is not to be compared with those of others."""
    node = Node()
    heard(node, range(100), ahead=ahead)
    raised, _ = heard(node, range(100, 160), hang=True, ahead=ahead)
    assert [e.value for e in raised.evidence if e.metric == "host.clock_offset_seconds"] == told


def test_the_vote_is_about_the_job_and_names_the_machine():
    """Key B is a hang suspicion of a machine's family, with the shares it rests on."""
    node = Node()
    run(node, range(100))
    run(node, range(100, 105), hang=True)
    (vote,) = node.update(105.0, watts=250.0, nic=0.0, job="j")
    assert (vote.kind, vote.family, vote.subject.node, vote.subject.job_id) == (
        "hang.job",
        "clocks",
        "n",
        "j",
    )
    assert [(e.metric, e.value) for e in vote.evidence] == [
        ("nic.port.bytes_share", 0.0),
        ("gpu.power_share", 0.4167),
        ("gpu.spinning_ratio", 1.0),
    ]


def test_a_node_without_a_job_says_nothing():
    """Machines nobody uses are idle, not hung."""
    node = Node()
    assert run(node, range(100), job=None) == []
    assert run(node, range(100, 200), hang=True, job=None) == []


def test_a_job_that_leaves_takes_the_vote_with_it():
    """When the node loses its job, or gets another, the vote is withdrawn and all is learnt anew."""
    for after in (None, "k"):
        node = Node()
        run(node, range(100))
        run(node, range(100, 110), hang=True)
        assert run(node, range(110, 200), hang=True, job=after) == [("clear", 110.0, 100.0)]


def test_a_restart_withdraws_the_vote():
    """The first sample after a restart of the node clears what was raised before."""
    node = Node()
    run(node, range(100))
    run(node, range(100, 110), hang=True)
    node.boot = "b2"
    assert run(node, range(110, 120), hang=True) == [("clear", 110.0, 100.0)]


def test_a_gpu_that_is_lost_does_not_hide_the_others():
    """With one GPU gone, the rest still turn the key."""
    node = Node()
    run(node, range(100))
    assert run(node, range(100, 110), hang=True, ids=("1",)) == [("raise", 105.0, 100.0)]


def test_a_new_gpu_withdraws_what_was_said_without_it():
    """When a GPU appears the node learns again."""
    node = Node()
    run(node, range(100))
    run(node, range(100, 110), hang=True)
    assert run(node, range(110, 112), hang=True, ids=("0", "1", "2")) == [("clear", 110.0, 100.0)]


def test_the_end_of_a_job_is_a_vote_against_its_hang():
    """GPUs left idle and empty for three seconds say that the job has gone; work says that it is back."""
    node = Node()
    assert heard(node, range(60), ended=True) == []
    assert heard(node, range(60, 160)) == []
    (left,) = heard(node, range(160, 200), ended=True)
    assert (left.state, left.ts, left.onset, left.kind) == ("raise", 163.0, 160.0, "hang.job")
    assert left.log_likelihood_ratio < 0
    assert [s.state for s in heard(node, range(200, 205))] == ["clear"]


def test_a_job_that_leaves_is_a_vote_against_its_hang():
    """When the sample names no job any more, that is said once about the job that was there."""
    node = Node()
    assert heard(node, range(60)) == []
    (left,) = heard(node, range(60, 80), job=None)
    assert (left.state, left.ts, left.subject.job_id) == ("raise", 60.0, "j")
    assert left.log_likelihood_ratio < 0


@pytest.mark.parametrize(("later", "said"), [("k", [(80.0, "j", True)]), ("j", []), (None, [])])
def test_a_node_says_when_it_has_another_job_than_its_last(later, said):
    """The next attempt of the same job is no other one."""
    node = Node()
    heard(node, range(60))
    assert [s.reused for s in heard(node, range(60, 80), job=None)] == [False]
    again = heard(node, range(80, 100), job=later)
    assert [(s.ts, s.subject.job_id, s.reused) for s in again if s.released] == said


def test_a_node_read_once_a_minute_votes_that_it_is_stuck():
    """Three minutes in which its GPUs spin and nothing is sent, after ten minutes of work."""
    node = Node()
    assert heard(node, range(0, 1220, 61)) == []
    (raised,) = heard(node, range(1220, 1450, 61), hang=True)
    assert (raised.ts, raised.stuck_since, raised.resting, raised.log_likelihood_ratio) == (
        1403,
        1220,
        True,
        3,
    )
    assert (raised.onset_lo, raised.onset) == (1159, 1220)
    cleared = heard(node, range(1464, 1600, 61))[-1]
    assert (cleared.state, cleared.ts) == ("clear", 1525)


def test_a_pause_that_turns_out_to_be_a_hang_updates_its_vote():
    """A node read every second has voted by then; what is new is that it is stuck."""
    node = Node()
    heard(node, range(700))
    said = heard(node, range(700, 900), hang=True)
    assert [(s.state, s.ts, s.onset, s.stuck_since) for s in said if s.stuck_since] == [
        ("update", 880.0, 700.0, 700.0)
    ]
