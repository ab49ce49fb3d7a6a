"""What a finding says: severity, cost, title, action."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alerts.finding import Action
from alerts.harm import harm, hurts
from alerts.kinds import KINDS, kind_of
from alerts.report.action import action, paging
from alerts.report.advice import Loss, advice
from alerts.report.cost import ActionCosts, lost_per_hour
from alerts.report.severity import severity
from alerts.report.title import MAX_TITLE, place_in_text, places, title
from alerts.stated_severity import ORDER, isolated, milder
from slowrank.telemetry import Subject

GPU = Subject(type="gpu", cluster="c", node="gpu-0423", gpu_index=5, rank=3389, job_id="j")
NOWHERE = Subject(type="rank", cluster="c", rank=3, job_id="j1")
JOB = Subject(type="job", cluster="c", job_id="j")
TYPES = ["gpu", "node", "nic", "link", "switch", "rank", "job", "rack", "exporter", "telemetry"]
CODES = (
    *("NONE", "WATCH", "CHECK_APP", "CHECK_DATA", "CHECK_NETWORK", "RESET_GPU", "REBOOT_NODE", "DRAIN_NODE"),
    *("RUN_DIAG", "REPLACE_CABLE", "HARDWARE_INSPECTION", "CONTACT_SUPPORT"),
)


@pytest.mark.parametrize(
    ("kind", "subject", "hurt", "confidence", "basis", "expected"),
    [
        ("straggler.fail_slow", GPU, True, 0.97, "slows_job", "critical"),
        ("straggler.fail_slow", GPU, True, 0.9, "slows_job", "critical"),
        ("straggler.fail_slow", GPU, True, 0.75, "slows_job", "error"),
        ("straggler.fail_slow", GPU, True, 0.7, "slows_job", "error"),
        ("straggler.fail_slow", GPU, True, 0.5, "slows_job", "warning"),
        ("straggler.fail_slow", GPU, True, 0.97, "hardware", "critical"),
        ("straggler.fail_slow", GPU, True, 0.97, "step_times", "error"),
        ("straggler.fail_slow", GPU, True, 0.5, "step_times", "warning"),
        ("straggler.fail_slow", GPU, True, 0.97, "weak", "error"),
        ("straggler.fail_slow", GPU, True, 0.97, "few_peers", "warning"),
        ("straggler.fail_slow", GPU, True, 0.97, "uneven", "warning"),
        ("straggler.fail_slow", GPU, False, 0.99, "large", "warning"),
        ("throttle.thermal", GPU, False, 0.99, "hardware", "warning"),
        ("xid.79", GPU, False, 0.95, "hardware", "critical"),
        ("xid.79", GPU, True, 0.5, "hardware", "critical"),
        ("hang.job", JOB, False, 0.5, "stop", "critical"),
        ("straggler.job_wide", JOB, True, 0.99, "other", "warning"),
        ("straggler.job_wide", JOB, False, 0.99, "other", "info"),
        ("straggler.job_wide", GPU, True, 0.99, "slows_job", "warning"),
        ("straggler.intermittent", JOB, True, 0.99, "other", "warning"),
        ("data.loader_slow", JOB, True, 0.99, "other", "critical"),
    ],
)
def test_severity(kind, subject, hurt, confidence, basis, expected):
    """Job impact with confidence pages, hardware without impact does not, a job without an outlier never.

    Nor does a slow rank that rows cannot tell from other work, or from its few peers, however sure.
    """
    own = kind_of(kind).severity
    known = {"own": own, "hurt": hurt, "confidence": confidence, "basis": basis}
    assert severity(kind, subject, **known, sustained=True) == expected
    # What may pass pages nobody, but for what the kind states by itself.
    milder_one = expected if own == expected else min(expected, "error", key=ORDER.index)
    assert severity(kind, subject, **known, sustained=False) == milder_one


@pytest.mark.parametrize(
    ("kind", "stated", "expected"),
    [
        ("xid.62", [], "error"),
        ("xid.62", [None], "error"),
        ("xid.62", ["info"], "info"),
        ("xid.62", ["info", "warning", None], "warning"),
        ("xid.31", [], "warning"),
        ("link.nic_errors", ["critical"], "warning"),
        ("link.nic_flap", ["warning"], "warning"),
        ("link.nic_flap", ["warning", "error"], "error"),
        ("xid.79", ["critical"], "critical"),
    ],
)
def test_a_rule_may_call_it_milder_than_its_kind(kind, stated, expected):
    """What a detector states lowers the severity of a finding and never raises it."""
    assert milder(kind, stated) == expected


@pytest.mark.parametrize(
    ("kind", "stated", "expected"),
    [
        ("link.nic_flap", ["warning"], True),
        ("link.nic_flap", ["info", None], True),
        ("link.nic_flap", ["warning", "error"], False),
        ("link.nic_flap", [], False),
        ("link.nic_errors", ["info"], False),
        ("xid.31", ["info"], False),
    ],
)
def test_a_flap_is_nobodys_business_until_a_detector_calls_it_an_error(kind, stated, expected):
    """Only what happens once in a while anyway is isolated, and only while it is milder than an error."""
    assert isolated(kind, stated) == expected


@pytest.mark.parametrize(("ratio", "before", "after"), [(1.05, False, True), (1.03, True, True)])
def test_limits_of_impact_belong_to_the_hurt(ratio, before, after):
    """A job is hurt from 1.05 on, and until it is below 1.03."""
    assert hurts(ratio, before) == after


def test_impact_has_hysteresis():
    """A job around 1.05 is hurt once and for all of it, until it is clearly better."""
    hurt, told = False, []
    for ratio in (1.04, 1.051, 1.049, 1.05, 1.031, 1.029, 1.049, None):
        hurt = hurts(ratio, hurt)
        told.append(hurt)
    assert told == [False, True, True, True, True, False, False, False]


@pytest.mark.parametrize(
    ("job", "own", "expected"),
    [(1.2, 1.04, 1.04), (1.1, 1.5, 1.1), (1.1, None, 1.1), (None, 1.5, None), (None, None, None)],
)
def test_a_machine_slows_its_job_by_no_more_than_it_is_slower_itself(job, own, expected):
    assert harm(job, own) == expected


def test_cost_of_a_slow_and_of_a_hung_job():
    """The published example: 4,096 GPUs at 1.31 lose 969.3 GPU-hours an hour, a hang loses them all."""
    assert lost_per_hour(4096, 1.31) == pytest.approx(969.3, abs=0.05)
    assert lost_per_hour(4096, math.inf) == 4096
    assert lost_per_hour(4096, 0.9) == lost_per_hour(0, 2.0) == lost_per_hour(8, math.nan) == 0.0


def test_title_names_place_ratio_and_peers():
    """The title says which GPU, how much slower, and than how many; without numbers it says less."""
    assert title("straggler.fail_slow", GPU, ratio=1.31, peers=127) == (
        "gpu-0423 GPU 5 (rank 3389) is 1.31x slower than 127 peers"
    )
    assert title("straggler.fail_slow", GPU, ratio=1.31, peers=1).endswith("is 1.31x slower than 1 peer")
    node = Subject(type="node", cluster="c", node="gpu-0423")
    assert title("straggler.fail_slow", node, ratio=1.3, peers=15, peer="other node") == (
        "gpu-0423 is 1.30x slower than 15 other nodes"
    )
    assert title("straggler.fail_slow", GPU) == "gpu-0423 GPU 5 (rank 3389) is slower than its peers"


@pytest.mark.parametrize(
    ("node", "coords", "name"),
    [
        ("n1", {"dp": 0, "pp": 1}, "n1 tensor-parallel group dp=0, pp=1"),
        ("n1", None, "Group of ranks of job j on n1"),
        (None, {"dp": 0, "pp": 1}, "Tensor-parallel group dp=0, pp=1 of job j"),
        (None, {"dp": 0}, "Replica dp=0 of job j"),
        (None, {"dp": 0, "tp": 1}, "Pipeline dp=0, tp=1 of job j"),
        (None, {"edp": 0, "pp": 0, "tp": 1}, "Group edp=0, pp=0, tp=1 of job j"),
    ],
)
def test_a_group_is_named_by_what_its_ranks_share(node, coords, name):
    subject = Subject(type="group", cluster="c", node=node, job_id="j", coords=coords)
    assert title("straggler.fail_slow", subject, ratio=1.3, peers=8) == f"{name} is 1.30x slower than 8 peers"


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        (["n1", "n1"], "n1 GPUs 0, 1 (ranks 0, 1)"),
        (["n2", "n1"], "2 ranks of job j on n1, n2"),
        ([f"n{i}" for i in range(10)], "10 ranks of job j on n0, n1, n2, n3, n4, n5, n6, n7 and 2 more"),
        ([None, None], "ranks 0, 1 of job j"),
    ],
)
def test_gpus_of_several_nodes_are_called_by_these(nodes, expected):
    gpus = [
        Subject(type="gpu", cluster="c", node=node, gpu_index=i, rank=i, job_id="j")
        for i, node in enumerate(nodes)
    ]
    assert places(gpus) == expected


UNNAMED = Subject(type="node", cluster="c", ranks="88-95", job_id="j")


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        (UNNAMED, "the likely machine of ranks 88-95 of job j"),
        (Subject(type="group", cluster="c", ranks="8-11", job_id="j"), "the group of ranks 8-11 of job j"),
        (Subject(type="group", cluster="c", coords={"dp": 0}, job_id="j"), "replica dp=0 of job j"),
        (Subject(type="job", cluster="c", job_id="j"), "job j"),
        (Subject(type="job", cluster="c", job_id="j", coords={"pp": 3}), "stage 3 of job j"),
        (Subject(type="rank", cluster="c", rank=5, job_id="j"), "rank 5 of job j"),
        (Subject(type="rack", cluster="c", rack="R7"), "rack R7"),
        (Subject(type="site", cluster="Prod"), "cluster Prod"),
        (Subject(type="node", cluster="c", node="Node-1"), "Node-1"),
        (Subject(type="gpu", cluster="c", node="Rank7", gpu_index=5), "Rank7 GPU 5"),
        (Subject(type="nic", cluster="c"), "NIC"),
    ],
)
def test_places_read_well_inside_a_sentence(subject, name):
    """What is no name begins with a small letter there, and with a capital in titles."""
    assert place_in_text(subject) == name
    assert title("data.loader_slow", subject)[0] == name.removeprefix("the ")[0].upper()
    assert title("host.clock_skew", subject) == f"The clock of {name} is off"


def test_the_node_of_an_unnamed_machine_is_looked_up():
    """By its ranks; the rest of the text calls it the likely machine."""
    assert told("straggler.fail_slow", UNNAMED).text.startswith(
        "Run diagnostics on the likely machine of ranks 88-95 of job j at the next pause."
    )
    assert (
        "Look up the node of ranks 88-95 of job j, drain it"
        in told("straggler.fail_slow", UNNAMED, pages=True).text
    )


@pytest.mark.slow
@given(
    st.sampled_from([*KINDS, "xid.31", "new.kind{0}"]),
    st.sampled_from(TYPES),
    st.text(max_size=200),
    st.none() | st.floats(1, 1e9),
)
def test_title_of_anything_is_one_short_line(kind, type_, name, ratio):
    """Whatever the names, a title is printable, one line and at most 120 characters."""
    subject = Subject(type=type_, cluster=name, node=name, nic=name, port=name, job_id=name, rack=name)
    text = title(kind, subject, ratio=ratio, peers=3)
    assert 0 < len(text) <= MAX_TITLE
    assert text.isprintable()


def told(kind, subject=GPU, *, cause=None, lost=None, pages=False, again=False):
    """The action about a job of 1,000 GPUs at 1.2 that has lost so many GPU-hours (None: nothing)."""
    loss = None if lost is None else Loss(1000, lost_per_hour(1000, 1.2), lost, age=60.0)
    weighed = None if loss is None else advice(cause or kind, loss, ActionCosts(), again=again)
    fields = {"hypothesis": cause or kind, "finding_id": "fnd_01JD7Q4Y6R8V"}
    return action(kind, subject, **fields, advice=weighed, pages=pages, again=again)


def test_a_machine_that_has_cost_a_restart_is_drained():
    """Once the loss has paid for a restart the node is drained, with the command to copy; else it waits."""
    drained = told("straggler.fail_slow", cause="throttle.thermal", lost=400.0)
    assert (drained.code, drained.advice.decision) == ("DRAIN_NODE", "evict")
    assert drained.commands[0] == (
        "scontrol update nodename=gpu-0423 state=drain reason='slowrank fnd_01JD7Q4Y6R8V throttle.thermal'"
    )
    assert "cooling" in drained.text
    assert "which pays for a restart (333 GPU-h)" in drained.text
    assert drained.text.startswith("Drain gpu-0423 and restart its job from the last checkpoint on a spare.")
    waits = told("straggler.fail_slow", cause="throttle.thermal", lost=2.0)
    assert (waits.code, waits.advice.decision) == ("HARDWARE_INSPECTION", "rebalance")
    # It comes with the same commands, and says that they do not stop the job.
    assert waits.commands == drained.commands
    first, check, later = (waits.text.index(words) for words in ("Drain gpu-0423: no", "Check", "less work"))
    assert 0 == first < check < later < waits.text.index("When this was")
    assert told("straggler.fail_slow").code == "RUN_DIAG"
    assert told("straggler.fail_slow").advice is None
    assert told("straggler.fail_slow", again=True) == told("straggler.fail_slow")
    assert told("straggler.intermittent", lost=400.0).code == "WATCH"


@pytest.mark.parametrize(
    ("kind", "begins", "then"),
    [
        ("straggler.fail_slow", "Run diagnostics", "Run diagnostics"),
        # A drain leaves the job running, and what comes and goes is watched until that ends.
        ("straggler.intermittent", "Watch gpu-0423", "Meanwhile watch gpu-0423"),
    ],
)
def test_what_pages_is_drained_first(kind, begins, then):
    """Also where its kind only watches or tests the machine, and a restart is not paid for yet."""
    step, page = told(kind, lost=2.0), told(kind, lost=2.0, pages=True)
    assert (step.commands, page.code) == ((), step.code)
    first = "Drain gpu-0423: no other job starts there, and its own goes on until it ends."
    assert step.text.startswith(begins)
    assert page.text == f"{first} {then}{step.text.removeprefix(begins)}"
    assert page.commands[1] == "kubectl cordon gpu-0423"
    assert paging(page, GPU, finding_id="fnd_01JD7Q4Y6R8V", why=kind) == page


NODE = Subject(type="node", cluster="c", node="gpu-0423", job_id="j")


@pytest.mark.parametrize(
    ("cause", "subject", "command"),
    [
        ("clock.low", GPU, "nvidia-smi --id=5 --reset-gpu-clocks  # on gpu-0423"),
        ("clock.low", NODE, "nvidia-smi --reset-gpu-clocks  # on gpu-0423"),
        ("throttle.power_limit", GPU, "nvidia-smi --id=5 --power-limit="),
        ("throttle.power_limit", NODE, "nvidia-smi --power-limit="),
    ],
)
@pytest.mark.parametrize("lost", [None, 2.0, 400.0])
def test_what_a_command_ends_while_the_job_goes_on_is_not_drained_first(cause, subject, command, lost):
    """The command alone, whatever it has cost; once it has come back the node is drained as well."""
    first = told("straggler.fail_slow", subject, cause=cause, lost=lost, pages=True)
    assert (first.code, len(first.commands)) == ("RUN_DIAG", 1)
    assert first.commands[0].startswith(command)
    assert first.text.index("the job goes on") < first.text.index("Drain")
    assert first.advice is None or first.advice.decision == "wait"
    for kind, pages in (("straggler.fail_slow", True), (cause, False)):
        back = told(kind, subject, cause=cause, lost=lost, pages=pages, again=True)
        assert back.text.startswith("Drain gpu-0423")
        assert back.commands[1] == "kubectl cordon gpu-0423"
    assert told("straggler.fail_slow", NOWHERE, cause=cause, lost=lost).commands == ()


@pytest.mark.parametrize("lost", [None, 2.0])
def test_what_may_be_the_data_is_looked_at_before_its_node_is_drained(lost):
    """A loader that is slow on one node may be the storage's fault; less work comes after both."""
    step = told("data.loader_slow", lost=lost, pages=True)
    words = ["Look at the data loader", "If that shows nothing, drain gpu-0423: no other"]
    found = [step.text.index(word) for word in [*words, *(["less work", "When this was"] if lost else [])]]
    assert found[0] == 0
    assert found == sorted(found)
    assert step.commands[1] == "kubectl cordon gpu-0423"


def test_a_machine_without_a_name_is_looked_up_first():
    """No command is made up for it."""
    page = told("straggler.fail_slow", NOWHERE, pages=True)
    assert page.text.startswith("Look up the node of rank 3 of job j1, drain it: no other job starts there")
    assert page.commands == ()


def test_a_job_is_never_drained():
    """Advice about a job holds no command."""
    assert told("straggler.job_wide", JOB, cause="imbalance.stage") == Action(
        "CHECK_APP", KINDS["imbalance.stage"].text
    )


@given(st.text(max_size=60))
def test_commands_quote_what_telemetry_says(node):
    """A hostile node name stays one word of the command that a person copies."""
    import shlex

    subject = Subject(type="gpu", cluster="c", node=node, gpu_index=0)
    for command in told("straggler.fail_slow", subject, lost=400.0).commands:
        words = shlex.split(command)
        assert len(words) in (3, 5)
        assert words[-1] == node or words[2] == f"nodename={node}"


@pytest.mark.parametrize("kind", [*KINDS, "xid.31", "unheard.of"])
def test_every_kind_has_a_known_action(kind):
    """Every kind's action is one of the published codes and its advice can be written for any subject."""
    rule = kind_of(kind)
    assert rule.action in CODES
    assert told(kind).code in CODES
    assert "{" not in told(kind, JOB, lost=1.0).text


@pytest.mark.parametrize(
    ("coords", "hypothesis", "expected"),
    [
        ({"pp": 3}, "imbalance.stage", "Stage 3 of job j carries 1.63x the compute of the others"),
        (None, "imbalance.stage", "A group of ranks of job j carries 1.63x the compute of the others"),
        ({"ep": 1}, "imbalance.stage", "Group ep=1 of job j carries 1.63x the compute of the others"),
        (None, "imbalance.workload", "Job j is 1.63x slower than with evenly spread work"),
        (None, "congestion", "Job j transfers 1.63x slower than before; no machine stands out"),
        (None, "data", "Job j waits for data and is 1.63x slower than it was"),
        (None, "straggler.job_wide", "Job j is 1.63x slower than it was; no machine stands out"),
    ],
)
def test_title_of_a_job_without_a_slow_machine(coords, hypothesis, expected):
    """It says what is compared with what."""
    job = Subject(type="job", cluster="c", job_id="j", coords=coords)
    assert title("straggler.job_wide", job, ratio=1.63, hypothesis=hypothesis) == expected


def test_title_of_a_job_whose_transfers_are_long_in_single_steps():
    job = Subject(type="job", cluster="c", job_id="j")
    told = title("straggler.job_wide", job, ratio=4.0, hypothesis="congestion", single_steps=True)
    assert told == "Job j transfers 4.00x slower than before, again and again; no machine stands out"
