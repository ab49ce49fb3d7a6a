import msgspec
import pytest

from alerts.reasoning.hang import certain, early, ended, excused, is_hang, note, suspects, weighed
from slowrank.telemetry import Evidence, HangVote, Subject
from slowrank.telemetry.records import Suspect


def said(
    node=None,
    *,
    signal="idle",
    onset=10.0,
    weight=3.0,
    nodes=0,
    spinning=1.0,
    note="all GPUs",
    ts=20.0,
    apart=1.0,
    **state,
):
    """A vote of a node that is read every ``apart`` s, or without a node what the steps say of the job."""
    evidence = Evidence(metric="gpu.spinning_ratio", unit="1", detector="quiet", value=spinning, note=note)
    subject = Subject(type="node" if node else "job", cluster="c", node=node, job_id="j")
    return HangVote(
        cluster="c", detector="d", family="clocks" if node else "job", kind="hang.job",
        signal=signal if node else "no_progress", state="raise", subject=subject,
        ts=ts, onset=onset, onset_lo=onset - apart, onset_hi=onset, score=1.0,
        log_likelihood_ratio=weight, nodes=nodes, evidence=(evidence,) if node else (), **state,
    )  # fmt: skip


def votes(count, **fields):
    return [said(f"n{i}", **fields) for i in range(count)]


def test_one_machine_that_is_quiet_for_long_makes_no_hang_certain():
    """A frozen exporter repeats a moment without work; the others have only just fallen quiet."""
    frozen, others = said("n0", certain=True), votes(4)[1:]
    assert not certain([said(nodes=4)], [frozen, *others])
    assert certain([said(nodes=4)], votes(3, certain=True))


@pytest.mark.parametrize(
    ("nodes", "quiet", "expected"),
    [
        (1, 0, False),
        (1, 1, True),
        (2, 1, False),
        (2, 2, True),
        (4, 3, True),
        (4, 2, False),
        (40, 36, True),
        (40, 35, False),
    ],
)
def test_nearly_all_machines_must_be_quiet(nodes, quiet, expected):
    """Nine in ten nodes turn key B; among three or more one may be an exception."""
    assert is_hang([said(nodes=nodes)], votes(quiet)) == expected


@pytest.mark.parametrize(
    ("nodes", "unheard", "quiet", "expected"),
    [
        (12, 4, 8, True),
        (12, 4, 7, False),
        (12, 7, 5, False),
        (2, 1, 1, True),
        (2, 2, 0, False),
        (4, 1, 2, False),
        (40, 2, 36, True),
        (40, 8, 32, True),
    ],
)
def test_of_machines_that_are_unheard_of_nothing_is_asked(nodes, unheard, quiet, expected):
    """A rack without power takes no part in the vote; all others must, and be half of the job."""
    silent = [said(f"s{i}", signal="no_telemetry", weight=0.0) for i in range(unheard)]
    assert is_hang([said(nodes=nodes)], [*votes(quiet), *silent]) == expected
    assert certain([said(nodes=nodes)], [*votes(quiet, certain=True), *silent]) == expected


def test_who_is_heard_of_again_is_no_longer_unheard_of():
    """A node that votes is not left out, whatever was said of it before."""
    silent = [said(f"n{i}", signal="no_telemetry", weight=0.0) for i in range(4)]
    assert not is_hang([said(nodes=12)], [*votes(8), *silent])


@pytest.mark.parametrize(("unheard", "left", "expected"), [(4, 8, True), (4, 7, False), (0, 8, False)])
def test_a_job_that_left_all_machines_that_are_heard_of_has_ended(unheard, left, expected):
    """A job whose rack is dark and that was then cancelled has ended, though the rack cannot say so."""
    gone = [said(f"n{i}", signal="left", weight=-4.0) for i in range(left)]
    silent = [said(f"s{i}", signal="no_telemetry", weight=0.0) for i in range(unheard)]
    assert ended([said(nodes=12)], [*gone, *silent]) == expected


def test_neither_key_alone_is_enough():
    """Without a stopped job, or without quiet machines, nothing hangs."""
    assert not is_hang([], votes(4))
    assert not is_hang([said(nodes=4)], [])
    assert not is_hang([said(nodes=4)], votes(4, weight=0.5))


def test_an_early_stall_takes_machines_that_neither_send_nor_compute():
    """Below the threshold one key of the machines is not enough, and from it on it is."""
    soon = [said(nodes=4, early=True)]
    assert early(soon)
    assert not early([said(nodes=4)])
    assert not is_hang(soon, votes(4))
    assert not is_hang(soon, [*votes(2, both_signs=True), *(said(f"m{i}") for i in range(2))])
    assert is_hang(soon, [*votes(3, both_signs=True), said("m")])
    assert is_hang([said(nodes=4)], votes(4))


@pytest.mark.parametrize(
    ("stall_certain", "votes_state", "expected"),
    [
        (False, {"both_signs": True}, False),
        (True, {"both_signs": True, "lasting": True}, True),
        (True, {"both_signs": True}, False),
        (True, {}, False),
        (False, {"certain": True}, True),
    ],
    ids=["may-pause", "no-such-pause", "may-evaluate-and-save", "may-evaluate", "too-long-for-any"],
)
def test_a_hang_is_information_while_it_may_be_a_pause(stall_certain, votes_state, expected):
    """Steps missing for too long call people if the machines neither send nor compute, else only at last."""
    stopped = [said(nodes=4, certain=stall_certain)]
    assert certain(stopped, votes(4, **votes_state)) == expected


def test_the_end_of_an_earlier_attempt_excuses_nothing():
    """Machines left before the last step, or a job that had ended before it, do not speak of this stall."""
    before = [*votes(4, weight=-4.0, signal="left", onset=4.0), said("n0", signal="ended", onset=4.0)]
    stopped = [said(nodes=4, onset=10.0)]
    assert not ended(stopped, before)
    assert is_hang(stopped, [*before, *votes(4)])


def test_a_job_that_left_its_machines_has_ended():
    """Votes against a hang from nearly all nodes are the end of the job, and never key B."""
    left = votes(4, weight=-4.0, signal="left")
    assert excused([said(nodes=4)], left)
    assert not excused([said(nodes=5)], left)
    assert not excused([], left)
    assert not is_hang([said(nodes=4)], left)


@pytest.mark.parametrize(
    ("heard", "released", "hangs"),
    [(14.0, False, True), (10.5, False, False), (14.0, True, False)],
    ids=["heard since", "heard before", "another job runs there"],
)
def test_a_job_whose_ranks_are_heard_of_has_not_left_its_machines(heard, released, hangs):
    """Ranks that wait report it, though their GPUs stand idle and hold little memory."""
    left = votes(4, weight=-4.0, signal="left", onset=11.0, released=released)
    stopped = [said(nodes=4, onset=10.0, alone=True, heard=heard)]
    assert is_hang(stopped, left) == hangs
    assert ended(stopped, left) != hangs


@pytest.mark.parametrize(
    ("declared", "now", "expected"),
    [(10.0, 20.0, True), (6.0, 20.0, True), (4.0, 20.0, False), (10.0, 609.0, True), (10.0, 611.0, False)],
    ids=["now", "just-before", "before-the-last-step", "for-ten-minutes", "and-no-longer"],
)
def test_a_declared_pause_excuses_for_a_while(declared, now, expected):
    """A checkpoint declared at the last step is no hang, unless it takes more than ten minutes."""
    stopped = [said(nodes=4, onset=10.0)]
    told = [*votes(4, ts=now), said("n0", weight=-4.0, signal="paused", onset=declared, ts=declared)]
    assert excused(stopped, told) == expected
    assert is_hang(stopped, told) != expected


def test_a_declared_end_excuses_for_ever():
    """A job that said it was done does not hang, whatever its machines do."""
    told = [*votes(4, ts=1e5), said("n0", weight=-4.0, signal="ended", onset=11.0)]
    assert excused([said(nodes=4, onset=10.0)], told)


def test_the_node_that_does_not_spin_is_named():
    """Where the others spin, the node that does not is the one they wait for."""
    voices = [
        said(nodes=5),
        *votes(4),
        said("n9", spinning=0.0),
        said("n8", spinning=0.75, note="all but GPU 3"),
    ]
    (told,) = note(voices)
    assert told.value == 2.0
    assert told.note == "n9: does not spin while the others do; n8: spins on all but GPU 3"


def test_the_node_that_fell_quiet_first_is_named():
    """An onset clearly before all others is told; onsets within the sampling are not ordered."""
    (told,) = note([*votes(3), said("n9", onset=7.0)])
    assert told.note == "n9: fell quiet 3.0 s before the others"
    assert suspects([*votes(3), said("n9", onset=9.0)]) == ()


@pytest.mark.parametrize("node", ["n1", "n9"])
def test_clocks_that_are_off_put_nobody_first(node):
    """Whether the first or another one has it, the order of what happened is not known."""
    said_all = [*votes(3), said("n9", onset=4.0)]
    off = Evidence(metric="host.clock_offset_seconds", unit="s", detector="clock", value=6.0)
    skewed = [
        msgspec.structs.replace(s, evidence=(*s.evidence, off)) if s.subject.node == node else s
        for s in said_all
    ]
    assert len(suspects(said_all)) == 1
    assert suspects(skewed) == ()


def test_nobody_is_named_where_nobody_stands_out():
    """All spinning, or hardly anybody spinning, tells nothing about one node; steps alone do not either."""
    assert suspects(votes(4)) == ()
    assert suspects(votes(4, spinning=0.0)) == ()
    assert suspects([said(nodes=4)]) == ()


@pytest.mark.parametrize(
    ("earlier", "apart", "named"), [(1.5, 1.0, 0), (1.6, 1.0, 1), (9.5, 15.0, 0), (15.6, 15.0, 1)]
)
def test_onsets_as_close_as_readings_have_no_order(earlier, apart, named):
    """Nodes are read once a second or every fifteen seconds, each at its own moment."""
    told = [*votes(3, apart=apart), said("n9", onset=10.0 - earlier, apart=apart)]
    assert len(suspects(told)) == named


@pytest.mark.parametrize("signal", ["left", "no_telemetry"])
def test_who_does_not_vote_for_a_hang_is_not_the_first_of_it(signal):
    """A node that had left before, or speaks against a hang, fell quiet for another reason."""
    assert suspects([*votes(4), said("n9", onset=1.0, signal=signal)]) == ()
    assert suspects([said("n1", onset=2.0), said("n2")]) == ()


def test_who_stands_out_is_suspected_with_a_probability():
    """Who stands out in two ways the more, and somebody else may it be still."""
    both, one = said("n9", spinning=0.0, onset=7.0), said("n8", spinning=0.75)
    found = suspects([said(nodes=5), *votes(4), one, both])
    assert [(s.subject, s.probability) for s in found] == [(both.subject, 0.6), (one.subject, 0.3)]


def test_at_most_three_nodes_are_named():
    """The likeliest of them, in an order that does not depend on that of the votes."""
    odd = [said(f"m{i}", spinning=0.5 - 0.1 * i) for i in (3, 1, 4, 2)]
    (told,) = note([*odd, *votes(9)])
    assert told.value == 3.0
    assert [part.partition(":")[0] for part in told.note.split("; ")] == ["m4", "m3", "m2"]
    assert note([*votes(9), *reversed(odd)]) == (told,)


@pytest.mark.parametrize(("weight", "expected"), [(1.0, True), (0.99, False)])
def test_a_vote_of_one_turns_the_key(weight, expected):
    """A weaker one says that a node is part of a hang, if there is one."""
    assert is_hang([said(nodes=4)], votes(4, weight=weight)) == expected


def test_a_vote_that_counts_alone_needs_no_machine():
    """Unless the job has ended or announced a pause; machines make it certain."""
    alone = [said(nodes=4, alone=True)]
    assert is_hang(alone, [])
    assert not certain(alone, [])
    assert not is_hang(alone, [said("n0", signal="ended")])
    assert not is_hang(alone, [said("n0", signal="paused")])
    assert certain([said(nodes=4, alone=True, certain=True)], votes(4, lasting=True))


def test_what_nodes_alone_show_needs_its_own_time_to_be_certain():
    """Without steps, nodes that have been idle for long do not make a hang critical: a pause may be long."""
    stopped = said(nodes=4, alone=True, by_nodes=True)
    idle = votes(4, lasting=True, certain=True)
    assert is_hang([stopped], idle)
    assert not certain([stopped], idle)
    assert certain([msgspec.structs.replace(stopped, certain=True)], idle)


@pytest.mark.parametrize(("signal", "hangs"), [("ended", False), ("paused", False), ("idle", True)])
def test_a_pause_declared_between_two_readings_excuses_what_nodes_alone_show(signal, hangs):
    """The job may have stopped at any moment since the reading before the first that shows it."""
    stopped = said(nodes=4, alone=True, by_nodes=True, onset=100.0, apart=60.0)
    assert is_hang([stopped], [said("n0", signal=signal, onset=50.0)]) == hangs


@pytest.mark.parametrize(
    ("stopped", "left_at", "named"),
    [
        ({}, 15, ["n3"]),
        ({}, 6, ["n3"]),
        ({}, 4, []),
        ({}, 900, []),
        ({"heard": 16.0}, 15, []),
        ({"alone": True, "by_nodes": True}, 15, ["n3"]),
        ({"alone": True, "by_nodes": True}, 4, ["n3"]),
        ({"alone": True, "by_nodes": True}, 900, []),
    ],
    ids=[
        "steps",
        "clocks-apart",
        "not-needed",
        "ended-later",
        "heard-since",
        "nodes",
        "nodes-before",
        "later",
    ],
)
def test_the_node_that_the_job_has_left_is_suspected(stopped, left_at, named):
    """Where it did as the others began to spin; not of a job that is ended later, or that went on without."""
    told = [said(nodes=4, **stopped), *votes(3), said("n3", signal="left", onset=left_at, weight=-4.0)]
    assert [s.subject.node for s in suspects(told)] == named


@pytest.mark.parametrize(
    ("spinning", "left", "named"), [(4, 1, 1), (3, 2, 2), (2, 2, 0), (1, 3, 0), (0, 1, 0)]
)
def test_nodes_that_the_job_has_left_stand_out_where_most_others_spin(spinning, left, named):
    """Of half of the nodes and more none is what the others wait for: the job ends."""
    gone = [said(f"m{i}", signal="left", onset=12.0, weight=-4.0, released=True) for i in range(left)]
    assert len(suspects([said(nodes=spinning + left), *votes(spinning), *gone])) == named


@pytest.mark.parametrize(("left_at", "counted"), [(12.0, 4), (900.0, 5)])
def test_the_node_that_the_others_wait_for_does_not_vote_against_their_hang(left_at, counted):
    """That the job has left it is why they wait; of a job that is ended later it counts."""
    gone = said("n3", signal="left", onset=left_at, weight=-4.0)
    assert len(weighed([said(nodes=4), *votes(3), gone])) == counted


@pytest.mark.parametrize(("onset", "counted"), [(1.0, 4), (11.0, 5)], ids=["before", "since"])
@pytest.mark.parametrize("signal", ["paused", "ended", "left"])
def test_what_was_said_before_the_last_step_does_not_make_a_hang_less_sure(signal, onset, counted):
    """As the start of the job; what is said since then is about this stop."""
    told = said("n0", signal=signal, onset=onset, weight=-4.0, released=True)
    assert len(weighed([said(nodes=4), *votes(3, spinning=0.0), told])) == counted


@pytest.mark.parametrize(("left", "weight"), [(1, -4.0 / 9), (3, -12.0 / 9), (9, -4.0), (10, -4.0)])
def test_a_few_nodes_that_the_job_has_left_make_a_hang_little_less_sure(left, weight):
    """In proportion to those who must say so for the job to have ended."""
    gone = [said(f"m{i}", signal="left", onset=900.0, weight=-4.0) for i in range(left)]
    stopped = said(nodes=10, alone=True)
    counted = weighed([stopped, *gone])
    assert [v.log_likelihood_ratio for v in counted[1:]] == pytest.approx([weight] * left)
    assert ended([stopped], gone) == (left >= 9)


@pytest.mark.parametrize(("now", "counted"), [(611.0, 2), (612.0, 1)])
def test_a_pause_that_lasts_for_longer_than_any_makes_a_hang_no_less_sure(now, counted):
    """Ten minutes after it was announced it excuses none either."""
    stopped = said(ts=now, alone=True)
    paused = said("n0", signal="paused", onset=12.0, weight=-4.0)
    assert is_hang([stopped], [paused]) == (counted == 1)
    assert len(weighed([stopped, paused])) == counted


def test_ranks_that_did_not_arrive_say_more_than_a_node_that_the_job_has_left():
    """Launchers that end with their rank leave nodes in any order."""
    rank = Suspect(subject=Subject(type="rank", cluster="c", rank=5, job_id="j"), probability=0.9)
    gone = said("n3", signal="left", onset=12.0, weight=-4.0)
    assert suspects([said(nodes=4, suspects=(rank,)), *votes(3), gone]) == (rank,)


def test_the_ranks_that_did_not_arrive_are_suspected():
    """A node that stands out takes precedence."""
    rank = Suspect(subject=Subject(type="rank", cluster="c", rank=5, job_id="j"), probability=0.9)
    steps = said(nodes=5, suspects=(rank,))
    assert suspects([steps]) == suspects([steps, *votes(4)]) == (rank,)
    odd = said("n9", spinning=0.0)
    assert [s.subject for s in suspects([steps, *votes(4), odd])] == [odd.subject]
