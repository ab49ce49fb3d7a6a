import pytest

from benchmarks.rig.verdict import pages
from benchmarks.rig.watch import Watch


class Findings:
    """A source of findings, set by the test."""

    def __init__(self):
        self.docs = []

    def findings(self, cluster):
        assert cluster == "rig"
        return self.docs


def finding(status="open", severity="warning", **more):
    return {"id": "f1", "kind": "hang.job", "status": status, "severity": severity, **more}


@pytest.fixture
def source():
    return Findings()


@pytest.fixture
def watch(source):
    return Watch(source, "rig")


def test_a_finding_is_remembered_as_it_was_first_seen(source, watch):
    """Also when it is not listed any more."""
    source.docs = [finding()]
    (first,) = watch.look()
    source.docs = []
    assert watch.look() == [first]


def test_a_suspicion_that_never_opened_is_none(source, watch):
    """Its status is not one of those that are notified."""
    source.docs = [finding("suspected")]
    assert watch.look() == []


def test_a_finding_that_becomes_a_page_is_one(source, watch):
    """Its severity rose after it was first seen."""
    source.docs = [finding()]
    watch.look()
    source.docs = [finding(severity="critical")]
    assert len(pages([seen.doc for seen in watch.look()])) == 1
