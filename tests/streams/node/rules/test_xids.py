"""The whole table of XIDs, and every promise of docs/hardware-rules.md about what opens a finding."""

import hardware_page
import pytest

from alerts.cases.lifecycle import NOTIFIED
from alerts.stated_severity import ORDER
from slowrank.telemetry import Evidence, NodeEvent, Subject
from slowrank.telemetry.hardware.xids import XIDS, xid_of
from streams.cluster.stage import FindingStage
from streams.node.rules.counter_rules import GPU_COUNTS, HOST_COUNTS, NIC_COUNTS
from streams.node.rules.event_tables import EVENT_RULES, UNKNOWN_XID
from streams.node.rules.state_rules import GPU_STATES, NIC_STATES, NODE_STATES
from streams.pipeline import local_pipeline

FATAL = ("critical", "error")
T0 = 1_795_160_000.0
GPU = Subject(type="gpu", cluster="c", node="n", gpu_index=3, job_id="j")
SYMPTOMS = {
    **{f"event.{name}": rule.symptom for name, rule in EVENT_RULES.items() if rule is not None},
    **{f"event.{name} once": rule.first for name, rule in EVENT_RULES.items() if rule and rule.first},
    "any other XID": UNKNOWN_XID.symptom,
    **{
        f"counter.{r.metric} {r.count:g} in {r.window:g}": r.symptom
        for r in (*GPU_COUNTS, *NIC_COUNTS, *HOST_COUNTS)
    },
    **{f"state.{r.name}": r.symptom for r in (*GPU_STATES, *NIC_STATES, *NODE_STATES)},
}


def event(number, node):
    return NodeEvent(
        cluster="c", node=node, ts=T0, source="kmsg", code=f"xid.{number}", subject={"gpu_index": 0}
    )


def opened_by_one_line():
    """What one line of each XID opens within its second: the findings by number."""
    pipeline = local_pipeline()
    found = [f for number in XIDS for f in pipeline.process(event(number, f"n{number}"))]
    found += pipeline.tick(T0 + 2.0)
    return {int((f.subject.node or "n0")[1:]): f for f in found if f.status in NOTIFIED}


OPENED = opened_by_one_line()


@pytest.mark.parametrize("number", [n for n, row in XIDS.items() if row.grade in FATAL and n != 74])
def test_a_fatal_xid_always_opens(number):
    """Alone, on a quiet node, without any other evidence: an error or worse, and something to do."""
    found = OPENED[number]
    assert ORDER.index(found.severity) >= ORDER.index("error")
    assert found.action.code not in ("NONE", "WATCH")
    assert found.detected_at - T0 <= 1.0
    assert len(found.title) < 100


@pytest.mark.parametrize("number", XIDS)
def test_each_grade_does_what_it_says(number):
    """A warning opens at once as well; an application's does not, nor what says nothing by itself."""
    grade = XIDS[number].grade
    assert (number in OPENED) == (grade in (*FATAL, "warning"))


def test_one_nvlink_error_is_a_warning():
    """Links are trained anew: the second within ten minutes is an error."""
    assert OPENED[74].severity == "warning"


def test_the_table_has_no_code_that_no_rule_has():
    """Each row has its rule, and each rule of an XID its row."""
    assert {xid_of(name) for name in EVENT_RULES if name.startswith("xid.")} == XIDS.keys()


@pytest.mark.parametrize("name", SYMPTOMS)
def test_what_the_page_says_opens_alone_does(name):
    """A lone raise of each rule, weighed for its ten minutes, opens or expires as the page says."""
    symptom = SYMPTOMS[name]
    seen = Evidence(metric="m", unit="1", detector="d", value=1.0)
    raised = symptom.claim(GPU, seen, detector="d", catalogue_id="events", rule_id="", note="").suspicion(
        "raise", ts=T0, onset=T0
    )
    stage = FindingStage()
    stage.process(raised)
    found = [f for second in range(0, 700, 5) for f in stage.tick(T0 + second)]
    statuses = {f.status for f in found}
    became = "alone" if "open" in statuses else "together" if "expired" in statuses else "never"
    assert became == hardware_page.opens(symptom)


@pytest.mark.parametrize("name", SYMPTOMS)
def test_the_severity_on_the_page_is_the_findings(name):
    """What opens alone is as severe as the page says."""
    symptom = SYMPTOMS[name]
    if hardware_page.opens(symptom) != "alone":
        return
    seen = Evidence(metric="m", unit="1", detector="d", value=1.0)
    stage = FindingStage()
    stage.process(
        symptom.claim(GPU, seen, detector="d", catalogue_id="events", rule_id="", note="").suspicion(
            "raise", ts=T0, onset=T0
        )
    )
    [found] = {f.id: f for second in range(5) for f in stage.tick(T0 + second)}.values()
    assert f"`{found.kind}`" == f"`{symptom.kind}`"
    assert hardware_page.severity_of(symptom) == found.severity
