"""What a finding tells of its case: who is compared with whom, how urgent it is, what acting costs."""

import pytest
from msgspec.structs import asdict, replace

from alerts.cases.fold import apply
from alerts.cases.scope import Scope
from alerts.config import FindingConfig
from alerts.kinds import KINDS
from alerts.report.cost import ActionCosts
from alerts.report.render import render, sources_of
from slowrank.telemetry import Baseline, Evidence, HangVote, Peers, Subject, Suspicion
from slowrank.telemetry.records import Suspect

CONFIG = FindingConfig()
PEERS = Peers(group="all", n=127, p05=0.98, median=1.0, p95=1.02)


def slow(gpu, *, ts=10.0, job_ratio=1.3, state="raise", **more):
    """One slow GPU of a job of 16 nodes."""
    return Suspicion(
        cluster="c",
        detector="peer_step",
        family="timing",
        kind="straggler.fail_slow",
        state=state,
        subject=Subject(type="gpu", cluster="c", node="n1", gpu_index=gpu, rank=gpu, job_id="j"),
        ts=ts,
        onset=5.0,
        onset_lo=4.0,
        onset_hi=6.0,
        score=2.0,
        log_likelihood_ratio=6.0,
        overwhelming=True,
        slowdown_ratio=1.3,
        job_slowdown_ratio=job_ratio,
        gpus=128,
        ranks=128,
        nodes=16,
        ranks_on_node=8,
        evidence=(
            Evidence(metric="compute_seconds", unit="s", detector="peer_step", value=1.3, peers=PEERS),
        ),
        **more,
    )


def told(*batches, config=CONFIG, by=lambda case: case.subject.type):
    """The findings of the scope after each batch of suspicions."""
    scope = Scope()
    for batch in batches:
        scope = apply(scope, batch, config)
        yield {
            by(case): render(sources_of(scope, case, config), config)
            for _, case in sorted(scope.cases.items())
        }


def test_a_node_is_compared_with_nodes():
    """Eight slow GPUs make a slow node, beside the other nodes of the job and not beside 127 GPUs."""
    (found,) = told([slow(gpu) for gpu in range(8)])
    assert found["node"].title == "n1 is 1.30x slower than 15 other nodes"
    assert found["gpu"].title == "n1 GPU 7 (rank 7) is 1.30x slower than 127 peers"


@pytest.mark.parametrize(
    ("value", "before", "words"),
    [
        (1.30, 1.00, "1.30x slower than 127 peers"),
        (1.00, 0.77, "1.30x slower than it was"),
        (1.30, 1.30, "1.30x slower than 127 peers"),
        (1.00, 1.00, "1.30x slower than 127 peers"),
    ],
    ids=["became slow", "caught up", "always slow", "neither shows it"],
)
def test_a_rank_level_with_its_peers_is_slower_than_it_was(value, before, words):
    """What was faster than the others and is no more is not said to be slower than they are."""
    shown = Evidence(
        metric="compute_seconds", unit="s", detector="peer_step", value=value, peers=PEERS,
        baseline=Baseline(median=before, mad=0.01, n=100),
    )  # fmt: skip
    (found,) = told([replace(slow(0), evidence=(shown,))])
    assert found["gpu"].title == f"n1 GPU 0 (rank 0) is {words}"


def test_a_ratio_around_the_limit_does_not_flap():
    """Once the job is hurt for long the finding stays urgent until the job is clearly better."""
    ratios = (1.051, 1.051, 1.049, 1.052, 1.04, 1.02)
    batches = [[slow(0, ts=280.0 + 30 * i, job_ratio=r)] for i, r in enumerate(ratios)]
    severities = [found["gpu"].severity for found in told(*batches)]
    assert severities == ["error"] + ["critical"] * 4 + ["warning"]


def test_advice_grows_with_the_loss():
    """A finding waits or rebalances at first and drains the node once that has cost as much as a restart."""
    costs = ActionCosts(restart_seconds=100, checkpoint_interval_seconds=200, rebalance_seconds=60)
    config = FindingConfig(costs=costs)
    batches = [[slow(0, ts=10.0 + 60 * i, state="update" if i else "raise")] for i in range(20)]
    advice = [found["gpu"].action for found in told(*batches, config=config)]
    decisions = [a.advice.decision for a in advice]
    assert decisions[0] == "rebalance"
    assert decisions[-1] == "evict"
    assert decisions == sorted(decisions, reverse=True)
    assert [a.code for a in advice] == ["DRAIN_NODE" if d == "evict" else "RUN_DIAG" for d in decisions]
    assert advice[-1].advice.gpu_hours_to_restart == pytest.approx(128 * 200 / 3600, abs=1e-4)


def test_the_weighing_is_told_as_json():
    """Numbers that are not known are left out, the others stand beside the action they led to."""
    (found,) = told([slow(0)])
    action = found["gpu"].to_json()["action"]
    assert action["advice"].keys() == {
        *("decision", "gpu_hours_lost", "gpu_hours_to_rebalance", "gpu_hours_to_restart", "permanent"),
        *("expected_remaining_seconds", "expected_gpu_hours", "heals_within_10_min"),
    }
    (calm,) = told([slow(0, job_ratio=1.01)])
    assert "advice" not in calm["gpu"].to_json()["action"]


def test_where_work_may_explain_it_nobody_is_sent():
    """A slow rank among ranks whose work varies unexplained is reported so, without advice to act, however
    often such ranks were slow."""
    odds = {"straggler.fail_slow": 4.0, "imbalance.workload": -1.0}
    (found,) = told([slow(0, hypotheses=odds)])
    assert (found["gpu"].confidence > 0.9, found["gpu"].severity) == (True, "warning")
    assert found["gpu"].action.advice is None
    assert found["gpu"].cause.alternatives.keys() == {"imbalance.workload"}


def hung(node=None, *, ts, state="raise"):
    """What the steps, or a node, say of a job of three nodes that has stopped."""
    said = slow(0, ts=ts, state=state, job_ratio=None)
    subject = Subject(type="node" if node else "job", cluster="c", node=node, job_id="j")
    detector, family = ("quiet", "nic") if node else ("step_progress", "job")
    stopped = replace(
        said, detector=detector, family=family, kind="hang.job", subject=subject, nodes=3, score=1.0,
        slowdown_ratio=None, log_likelihood_ratio=3.0,
    )  # fmt: skip
    return HangVote(**asdict(stopped), signal="idle" if node else "no_progress")


def job_wide(ts):
    """A job that is slow without a machine that stands out."""
    subject = Subject(type="job", cluster="c", job_id="j")
    return replace(slow(0, ts=ts, hypotheses={"data": 5.0}), kind="straggler.job_wide", subject=subject)


@pytest.mark.parametrize(
    ("cause", "verb"), [("imbalance.machine", "take"), ("imbalance.slowed_machine", "have come to take")]
)
def test_nodes_that_are_all_slow_are_named_and_none_is_the_one_culprit(cause, verb):
    """Two of a job's nodes may be of a class: no eviction says that one of them is bad."""
    names = ("n1", "n2")
    nodes = tuple(
        Suspect(subject=Subject(type="node", cluster="c", node=name, job_id="j"), probability=0.5)
        for name in names
    )
    note = Evidence(
        metric="compute_seconds", unit="s", detector="peer_step", value=1.2, note=f"nodes {', '.join(names)}"
    )
    both = replace(
        job_wide(40.0),
        hypotheses={cause: 5.0},
        evidence=(note,),
        suspects=nodes,
        slowdown_ratio=1.2,
    )
    (found,) = told([both])
    finding = found["job"]
    assert finding.title == f"Ranks of job j on n1, n2 {verb} 1.20x as long to compute as the others"
    assert [s.subject.node for s in finding.suspects] == ["n1", "n2"]
    assert (finding.action.code, finding.action.eviction) == ("RUN_DIAG", None)
    assert finding.action.text.startswith("Run diagnostics on n1, n2")


@pytest.mark.parametrize("cause", [name for name, row in KINDS.items() if row.all_slow])
def test_no_eviction_is_advised_where_all_suspects_are_slow(cause):
    """There is no one machine to leave out, as there is for other causes."""
    nodes = tuple(
        Suspect(subject=Subject(type="node", cluster="c", node=name, job_id="j"), probability=0.5)
        for name in ("n1", "n2")
    )
    evicted = []
    for hypothesis in (cause, "group"):
        (found,) = told([replace(job_wide(40.0), hypotheses={hypothesis: 5.0}, suspects=nodes)])
        evicted.append(found["job"].action.eviction is not None)
    assert evicted == [False, True]


@pytest.mark.parametrize(
    ("beside", "expected"), [([job_wide(40.0)], "info"), ([slow(0, ts=40.0)], "critical")]
)
def test_a_job_slow_by_itself_makes_no_hang_surer(beside, expected):
    """A pause taken for a hang calls nobody because its job is also slow; a slow machine in it does."""
    stopped = [hung(ts=20.0), *(hung(f"n{i}", ts=20.0) for i in range(3))]
    over = [hung(ts=30.0, state="clear"), *(hung(f"n{i}", ts=30.0, state="clear") for i in range(3))]
    paused, _, slowed = told(stopped, over, beside, by=lambda case: case.kind)
    assert (paused["hang.job"].status, paused["hang.job"].severity) == ("open", "info")
    assert slowed["hang.job"].blast_radius.other_findings
    assert slowed["hang.job"].severity == expected


def starting(ts):
    """A job that announces a start of its own, from one of its nodes."""
    vote = replace(
        hung("n0", ts=ts), onset=ts, detector="job.paused", family="host", log_likelihood_ratio=-4.0
    )
    return replace(vote, signal="paused")


@pytest.mark.parametrize(("announced", "as_sure"), [(490.0, True), (25.0, False)])
def test_a_start_after_the_stop_was_found_is_no_evidence_against_it(announced, as_sure):
    """The restart is what was done about the hang; a pause announced as the job stopped argues against it."""
    stopped = [replace(hung(ts=80.0), alone=True, onset=20.0)]
    without, restarted = told(stopped, [starting(announced)], by=lambda case: case.kind)
    found, later = without["hang.job"], restarted["hang.job"]
    assert (found.status, later.status) == ("open", "open")
    assert (later.confidence == found.confidence) == as_sure


def flap(severity, *, ts=10.0):
    """A port of the node of ``slow`` that lost its link."""
    said = slow(0, ts=ts)
    return replace(
        said,
        detector="counter.nic.port.link_downed_total",
        family="nic",
        kind="link.nic_flap",
        subject=Subject(type="nic", cluster="c", node="n1", nic="mlx5_0", port="1", job_id="j"),
        severity=severity,
    )


def test_one_flap_is_told_and_nobody_is_sent_for_it():
    """However slow the job is meanwhile: a warning to watch; a second flap is an error and may be urgent."""
    once, again = (found["nic"] for found in told([flap("warning")], [flap("error", ts=20.0)]))
    assert (once.severity, once.action.code, once.action.commands, once.action.advice) == (
        "warning",
        "WATCH",
        (),
        None,
    )
    assert again.severity in ("error", "critical")
    assert again.action.code in ("REPLACE_CABLE", "DRAIN_NODE")


@pytest.mark.parametrize("onset", [5.0, 605.0], ids=["at once", "much later"])
def test_a_port_that_goes_down_again_and_again_leads_what_else_it_shows(onset):
    """Its errors, known first, become part of the finding that says that it repeats."""
    errors = replace(flap("error"), detector="counter.symbols", kind="link.nic_errors")
    often = replace(flap("error", ts=onset + 10.0), onset=onset)
    first, then = told([errors], [replace(errors, ts=often.ts), often], by=lambda case: case.kind)
    assert first["link.nic_errors"].group_key is None
    port = then["link.nic_flap"]
    assert (then["link.nic_errors"].group_key, port.group_key) == (port.dedup_key, None)
    assert (port.action.code, port.cause.hypothesis) == ("REPLACE_CABLE", "link.nic_flap")
    assert port.blast_radius.other_findings == (first["link.nic_errors"].id,)


@pytest.mark.parametrize(
    ("severity", "other"),
    [("warning", {}), ("error", {"nic": "mlx5_3", "port": "1"})],
    ids=["once", "another port, much later"],
)
def test_errors_are_no_part_of_a_port_that_flaps_once_or_of_another_one(severity, other):
    """What is advised about the errors stands."""
    errors = replace(flap("error"), detector="counter.symbols", kind="link.nic_errors")
    port = Subject(**{**asdict(errors.subject), **other})
    onset = 605.0 if other else 5.0
    lost = replace(flap(severity, ts=onset + 10.0), onset=onset, subject=port)
    *_, found = told([errors], [replace(errors, ts=lost.ts), lost], by=lambda case: case.kind)
    assert found["link.nic_errors"].group_key is None
    assert found["link.nic_errors"].action.code == "REPLACE_CABLE"


def of_steps(ts, state="raise"):
    """A rank that holds its job up since second 5, as its steps say."""
    return replace(slow(0, ts=ts, state=state, job_ratio=1.15), log_likelihood_ratio=4.0)


def of_power(ts, state="raise", *, onset):
    """The power of its GPU has left that of the node's others."""
    at = {"onset": onset, "onset_lo": onset, "onset_hi": onset}
    vote = {
        "log_likelihood_ratio": 1.0,
        "overwhelming": False,
        "slowdown_ratio": None,
        "job_slowdown_ratio": None,
    }
    named = {"detector": "change.gpu.power_watts", "family": "clocks"}
    return replace(slow(0, ts=ts, state=state), evidence=(), **named, **at, **vote)


def low_clock(ts, state="raise"):
    """The GPU's clock is below that of the node's others, without a reason."""
    said = of_power(ts, state, onset=8.0)
    return replace(said, detector="state.low_clock", kind="clock.low", log_likelihood_ratio=6.0)


@pytest.mark.parametrize(
    ("ended", "drained"),
    [
        ([], False),
        ([of_steps(60, "clear")], False),
        ([low_clock(60, "clear")], True),
        ([of_steps(60, "clear"), low_clock(61, "clear")], True),
    ],
    ids=["nothing", "its steps", "its clock", "both"],
)
def test_a_lock_is_released_until_it_has_come_back(ended, drained):
    """A machine that is slow once more under the same lock has had nothing released."""
    *_, found = told([of_steps(10), low_clock(20)], ended, [of_steps(90), low_clock(91)], by=lambda c: c.kind)
    slow_again = found["straggler.fail_slow"]
    assert (slow_again.cause.hypothesis, slow_again.status) == ("clock.low", "open")
    assert (slow_again.action.code == "DRAIN_NODE") == drained
    assert slow_again.action.commands[0].startswith("scontrol" if drained else "nvidia-smi")


def severities(*said):
    """How urgent the finding is after each suspicion."""
    return [found["gpu"].severity for found in told(*([s] for s in said))]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        # Slow steps, and a GPU that changed with them.
        ([of_steps(10), of_power(20, onset=8)], ["error", "critical"]),
        ([of_power(20, onset=8), of_steps(25)], ["warning", "critical"]),
        # It changed later, and the steps after that were slow.
        ([of_steps(10), of_steps(190, "update"), of_power(192, onset=180)], ["error", "error", "critical"]),
        (
            [
                of_steps(10),
                of_power(192, onset=180),
                of_steps(220, "update"),
                of_power(252, "update", onset=180),
            ],
            ["error", "error", "error", "critical"],
        ),
        # It changed as the job paused: no step came before it was as before.
        ([of_steps(170), of_power(192, onset=180), of_steps(220, "update")], ["error"] * 3),
        # It was so before the steps were slow, and not since.
        (
            [of_power(20, onset=8), of_power(100, "clear", onset=8), of_steps(110), of_steps(300, "clear")],
            ["warning", "warning", "error", "error"],
        ),
    ],
)
def test_what_a_gpu_shows_supports_the_steps_of_its_time(said, expected):
    """A slow rank's GPU differs from the others also where the job pauses; that makes nothing surer."""
    assert severities(*said) == expected


def test_a_node_of_ranks_that_recovered_one_by_one_still_names_them():
    """Once all are well, the finding is of all that were slow."""
    ends = [[slow(gpu, ts=100.0 + gpu, state="clear")] for gpu in range(8)]
    *_, last = told([slow(gpu) for gpu in range(8)], *ends)
    assert last["node"].title == "n1 is 1.30x slower than 15 other nodes"


def of_group(note, coords=None, *, score=2.0, onset=5.0):
    """A part of the job with more work than the others."""
    shown = Evidence(metric="compute_seconds", unit="s", detector="peer_step", value=score, note=note)
    subject = Subject(type="job", cluster="c", job_id="j", coords=coords)
    return replace(
        job_wide(10.0), subject=subject, evidence=(shown,), hypotheses={"imbalance.stage": 5.0},
        onset=onset, score=score,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("note", "coords", "words"),
    [
        ("pp=3", {"pp": 3}, "Give the slowest stage fewer layers"),
        ("ep=5", {"ep": 5}, "over the experts of group ep=5 of job j"),
        ("gpu_model=A100", None, "slower GPU model (A100)"),
        ("gpu_model=A100, pp=3", {"pp": 3}, "slower GPU model (A100)"),
        ("gpu_model=NVIDIA A100, 80GB, pp=3, tp=1", {"pp": 3}, "slower GPU model (NVIDIA A100, 80GB)"),
        ("gpu_model={0} %s `x` a=b/c, pp=", None, "slower GPU model ({0} %s `x` a=b/c, pp=)"),
        ("tp=1", {"tp": 1}, "Look at what the ranks of group tp=1 of job j share"),
        ("ranks 7,15", None, "Look at what ranks 7,15 share"),
    ],
)
def test_the_action_fits_what_distinguishes_the_slow_ranks(note, coords, words):
    """Only a pipeline stage has layers to give away."""
    (found,) = told([of_group(note, coords)])
    assert words in found["job"].action.text


def test_the_action_is_about_the_ranks_with_more_work_in_whatever_finding():
    """Not about what the finding's own evidence notes."""
    (shown,) = slow(3).evidence
    noted = replace(slow(3), evidence=(replace(shown, note="confirmed in hindsight"),))
    (found,) = told([noted, of_group("ranks 7,15")])
    assert {"Look at what ranks 7,15 share" in f.action.text for f in found.values()} == {True}


def test_title_and_cause_name_the_gpu_model_as_the_action_does():
    """Ranks on another GPU model carry no more compute: they take longer for as much."""
    (found,) = told([replace(of_group("gpu_model=A100", None), slowdown_ratio=1.6)])
    assert found["job"].title == "Ranks of job j on A100 take 1.60x as long to compute as the others"
    assert found["job"].cause.hypothesis == "imbalance.model"
    (found,) = told([replace(of_group("pp=3", {"pp": 3}), slowdown_ratio=1.6)])
    assert found["job"].cause.hypothesis == "imbalance.stage"


def test_title_and_evidence_are_about_one_group():
    """Two expert groups with more work, the second by more: each finding shows its own."""
    both = [of_group("ep=5", {"ep": 5}), of_group("ep=6", {"ep": 6}, score=3.0, onset=6.0)]
    (found,) = told(both, by=lambda case: case.subject.coords["ep"])
    assert [found[ep].evidence[0].note for ep in (5, 6)] == ["ep=5", "ep=6"]
    assert found[5].title.startswith("Group ep=5")


@pytest.mark.parametrize(
    ("probability", "missing"), [(0.9, "rank 7 did not arrive"), (0.45, "no steps")], ids=["sure", "unsure"]
)
def test_a_stop_names_the_rank_that_did_not_arrive(probability, missing):
    """Where one rank alone is behind."""
    rank = Subject(type="rank", cluster="c", rank=7, job_id="j")
    vote = replace(hung(ts=20.0), suspects=(Suspect(subject=rank, probability=probability),), alone=True)
    (found,) = told([vote])
    assert found["job"].title == f"Job j has stopped: {missing}"


@pytest.mark.parametrize(
    ("ranks", "nodes", "missing"),
    [
        (range(8, 16), 1, "ranks 8-15 of n0 did not arrive"),
        (range(8, 19), 1, "ranks 8-18 of n0 did not arrive"),
        ((8, 9, 12), 1, "3 ranks of n0 did not arrive"),
        (range(8, 16), 2, "no steps"),
    ],
)
def test_a_stop_names_the_ranks_of_a_node_that_did_not_arrive(ranks, nodes, missing):
    """Which of them it is they share the probability of; ranks of several nodes are only suspects."""
    share = round(0.9 / len(ranks), 4)
    suspects = tuple(
        Suspect(
            subject=Subject(type="rank", cluster="c", node=f"n{k % nodes}", rank=rank, job_id="j"),
            probability=share,
        )
        for k, rank in enumerate(ranks)
    )
    (found,) = told([replace(hung(ts=20.0), suspects=suspects, alone=True)])
    assert found["job"].title == f"Job j has stopped: {missing}"


def test_a_job_that_stops_again_and_again_says_how_often():
    """As in a loop of crashes and restarts: three stops within minutes are one finding."""
    stops = [
        [replace(hung(ts=at, state=state), alone=True, onset=at - 10.0)]
        for at, state in (
            (20.0, "raise"),
            (50.0, "clear"),
            (80.0, "raise"),
            (90.0, "clear"),
            (120.0, "raise"),
        )
    ]
    titles = [found["job"].title for found in told(*stops)]
    assert titles[0] == "Job j has stopped: no steps"
    assert titles[-1] == "Job j has stopped 3 times: no steps"


def test_most_ranks_of_a_group_are_all_of_them():
    """Three of four are half as likely as the likeliest: all four are looked at, as many as are suspects."""
    group = Subject(type="group", cluster="c", job_id="j", coords={"dp": 5})
    ranks = [Subject(type="rank", cluster="c", rank=rank, job_id="j") for rank in range(4)]
    likely = zip(ranks, (0.3, 0.3, 0.3, 0.1), strict=True)
    suspects = tuple(Suspect(subject=rank, probability=p) for rank, p in likely)
    (found,) = told([replace(slow(0), subject=group, suspects=suspects)])
    assert "ranks 0, 1, 2, 3 of job j" in found["group"].action.text
