"""The rows of finding kinds: what each must hold, and that nothing but a row is needed for a new one."""

from dataclasses import replace
from string import Formatter

import kinds_table
import pytest

from alerts.cases.fold import apply
from alerts.cases.scope import Scope
from alerts.config import FindingConfig
from alerts.kind import Kind, Standing
from alerts.kinds import KINDS, UNHEARD_KIND, cause_name, kind_of, nearest_kind
from alerts.notify import DEFAULT_EVENTS, NotifiedState, event_of
from alerts.report.render import render, sources_of
from alerts.xid_kinds import XID_KINDS
from slowrank.telemetry import Subject, Suspicion
from streams.cluster.stage import FindingStage
from streams.runtime.monitoring.metrics import counted_kind

TOY = "toy.wobble"
ROW = Kind(
    standing=Standing.CAUSE,
    title="{place} wobbles",
    meaning="a machine that wobbles",
    severity="error",
    action="HARDWARE_INSPECTION",
    text="Tighten the screws of {place}.",
)
EVERY = {**XID_KINDS, **KINDS, TOY: ROW}
FINDINGS = [name for name, kind in EVERY.items() if kind.reported_as == "finding"]
NODE = Subject(type="node", cluster="c", node="n1")


@pytest.fixture(autouse=True)
def _toy(monkeypatch):
    """One row."""
    monkeypatch.setitem(KINDS, TOY, ROW)


def raised(kind, *, job_slowdown=None):
    """A suspicion of the kind that needs no second family."""
    return Suspicion(
        cluster="c",
        detector="test",
        family="timing" if kind_of(kind).hang else "host",
        kind=kind,
        state="raise",
        subject=NODE,
        ts=20.0,
        onset=10.0,
        onset_lo=9.0,
        onset_hi=11.0,
        score=2.0,
        log_likelihood_ratio=6.0,
        overwhelming=True,
        job_slowdown_ratio=job_slowdown,
        gpus=8,
    )


def test_a_toy_kind_becomes_a_finding_and_a_notification():
    """From the suspicion to the event of a webhook: title, severity and action are those of the row."""
    stage = FindingStage()
    stage.process(raised(TOY))

    [finding] = stage.tick(21.0)

    assert (finding.kind, finding.title, finding.status) == (TOY, "n1 wobbles", "open")
    assert (finding.severity, finding.action.code) == ("error", "HARDWARE_INSPECTION")
    assert finding.action.text == "Tighten the screws of n1."
    assert event_of(None, NotifiedState.of(finding)) in DEFAULT_EVENTS


@pytest.mark.parametrize(
    ("pages", "severity"), [("never", "warning"), ("machine", "critical"), ("hurt", "critical")]
)
def test_the_row_decides_whether_a_hurt_job_pages(monkeypatch, pages, severity):
    """With the same evidence, only a kind that may page becomes critical."""
    monkeypatch.setitem(KINDS, TOY, replace(ROW, pages=pages))
    stage = FindingStage()
    stage.process(raised(TOY, job_slowdown=1.5))
    [finding] = stage.tick(21.0)
    assert finding.severity == severity


def test_a_toy_kind_is_documented_and_counted():
    """It has a line in the table of kinds and a label of its own in the metrics."""
    assert kinds_table.rows()[-1] == (
        "| [`toy.wobble`](runbooks.md#toywobble) | a machine that wobbles | error | `HARDWARE_INSPECTION` |\n"
    )
    assert counted_kind(TOY) == TOY


@pytest.mark.parametrize("name", FINDINGS)
def test_a_finding_of_each_kind(name):
    """Each can be rendered, and without a hurt job none is graver than its row."""
    scope = apply(Scope(), [raised(name)], FindingConfig())
    [case] = [c for c in scope.cases.values() if c.kind == name]
    finding = render(sources_of(scope, case, FindingConfig()), FindingConfig())
    assert case.rule is EVERY[name]
    assert finding.title
    assert finding.severity in ("info", EVERY[name].severity)


@pytest.mark.parametrize(("name", "kind"), EVERY.items(), ids=EVERY)
def test_a_row_is_whole(name, kind):
    """Templates name what there is; kinds that a row refers to exist; every finding's kind is explained."""
    fields = {
        field for text in (kind.title, kind.text) for _, field, _, _ in Formatter().parse(text or "") if field
    }
    allowed = {"place", "group", "ratio", "peers", "missing", "again", "model", "nodes", "since", "some"}
    assert fields <= allowed
    assert (kind.reported_as == "finding") == bool(kind.meaning) or name in XID_KINDS
    others = {kind.relapsing_as, kind.with_hang, kind.until_hang} - {None}
    assert all(kind_of(other).reported_as == "finding" for other in others)
    evidence = kind.domain.evidence if kind.domain else ()
    listed = {*kind.explained_by, *evidence} - {UNHEARD_KIND}
    assert listed <= EVERY.keys()
    assert kind.domain is None or kind.domain.hypothesis in EVERY


@pytest.mark.parametrize(
    ("hypothesis", "words"),
    [
        ("throttle.thermal", "thermal throttling"),
        ("made.up_kind", "made: up kind"),
        ("data_loading", "data loading"),
    ],
)
def test_a_cause_is_named_in_words(hypothesis, words):
    """By its phrase where its row has one."""
    assert cause_name(hypothesis) == words


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("link.tcp_los", "link.tcp_loss"),
        ("stragler", "straggler"),
        ("throttle.therml", "throttle.thermal"),
        ("link.tcp_loss", ""),
        ("link.tcp_delay", ""),
        ("straggler", ""),
        ("link.xgmi_errors", ""),
        ("xid.79", ""),
        ("self.lag", ""),
        ("nosuch", ""),
    ],
)
def test_a_misspelt_kind_is_recognised(name, nearest):
    """What has the row of its family is a kind, unless it is nearly one with a row of its own."""
    assert nearest_kind(name) == nearest
