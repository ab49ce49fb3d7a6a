import pytest

from benchmarks.rig.verdict import Seen, Target, accuses, judge, pages

RANK = Target("rank", rank=3, node="n1", job="job")
NODE = Target("node", rank=3, node="n1", job="job")
MADE = 1_700_000_000.0


def finding(kind="hang.job", *, suspects=(), severity="error", **subject):
    return {
        "kind": kind,
        "severity": severity,
        "detected_at": "2023-11-14T22:13:30Z",
        "subject": {"type": "job", "job_id": "job"} | subject,
        "suspects": [
            {"subject": {"rank": rank, "node": f"n{rank // 2}"}, "probability": p} for rank, p in suspects
        ],
    }


def judged(*docs, target=RANK, kinds=("hang.job",), at=12.5):
    return judge([Seen(MADE + at, doc) for doc in docs], target, frozenset(kinds), made_at=MADE)


def test_a_finding_about_the_rank_is_right():
    """Its delays are by the clock of the rig and by event time."""
    verdict = judged(finding(rank=3))
    assert (verdict.delay_seconds, verdict.event_seconds) == (12.5, 10.0)
    assert (verdict.kind, verdict.severity, verdict.others) == ("hang.job", "error", ())


@pytest.mark.parametrize(
    ("suspects", "right"),
    [
        ([(3, 0.9)], True),
        ([(3, 0.6), (4, 0.3)], True),
        ([(2, 0.45), (3, 0.45)], True),
        ([(3, 0.45), (4, 0.45)], False),
        ([(4, 0.9)], False),
        ([], False),
    ],
)
def test_the_likeliest_suspect_is_named(suspects, right):
    """Not one of several machines that are suspected alike, and no job without a name."""
    assert (judged(finding(suspects=suspects)).delay_seconds is not None) == right


def test_other_findings_are_listed():
    """A rank beside it, and a node of which a rank is meant."""
    verdict = judged(finding(rank=5), finding("link.nic_flap", node="n1"))
    assert verdict.delay_seconds is None
    assert verdict.others == ("hang.job rank 5", "link.nic_flap node n1")


def test_a_node_is_named_by_its_devices():
    """A port of it, for a fault of its link."""
    doc = finding("link.nic_flap", node="n1", nic="eth1")
    assert judged(doc, target=NODE, kinds=["link.nic_flap"]).delay_seconds == 12.5
    assert judged(doc, target=NODE, kinds=["exporter.stale"]).delay_seconds is None


def test_what_was_seen_before_the_fault_does_not_count():
    """It is about something else."""
    verdict = judge([Seen(MADE - 1.0, finding(rank=3))], RANK, frozenset(["hang.job"]), made_at=MADE)
    assert (verdict.delay_seconds, verdict.others) == (None, ())


def test_pages_are_critical_findings():
    """An error is a ticket."""
    assert pages([finding(severity="critical"), finding()]) == [finding(severity="critical")]


@pytest.mark.parametrize(
    ("kind", "subject", "right"),
    [
        ("straggler.fail_slow", {"rank": 3}, True),
        ("throttle.power", {"node": "n1", "gpu_index": 0}, True),
        ("straggler.job_wide", {}, False),
        ("exporter.stale", {"node": "n1"}, False),
        ("self.lag", {"node": "n1"}, False),
    ],
)
def test_a_finding_about_a_machine_accuses_it(kind, subject, right):
    """One about a job or about telemetry does not."""
    assert accuses(finding(kind, **subject)) == right
