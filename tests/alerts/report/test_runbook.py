"""Findings link to the runbook of their kind."""

import pytest

from alerts.finding import Finding
from alerts.report.runbook import with_runbook
from slowrank.telemetry import Subject


def finding(kind):
    """A finding of the kind."""
    return Finding(
        id="fnd_1",
        dedup_key="c/node/n1",
        kind=kind,
        title="t",
        severity="error",
        status="open",
        subject=Subject(type="node", cluster="c", node="n1"),
        detector="d",
        onset=1.0,
        onset_lo=1.0,
        onset_hi=1.0,
        detected_at=1.0,
        last_seen_at=1.0,
    )


@pytest.mark.parametrize(
    ("kind", "page"),
    [("throttle.thermal", "throttle.thermal"), ("xid.31", "xid"), ("xid.79", "xid.79"), ("self.lag", "self")],
)
def test_the_link_names_the_row_of_the_kind(kind, page):
    """Of all kinds that share a row it is the same."""
    action = with_runbook(finding(kind), "https://h/r/{kind}").action
    assert action.runbook_url == f"https://h/r/{page}"


def test_without_an_address_there_is_no_link():
    """As in a replay, which has no API."""
    assert with_runbook(finding("xid.79"), "").action.runbook_url is None
