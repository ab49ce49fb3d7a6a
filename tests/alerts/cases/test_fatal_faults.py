"""Several fatal faults of one GPU within a minute: one finding, about the gravest, whichever came first."""

from itertools import permutations

import msgspec
import pytest

from alerts.cases.fold import advance, apply
from alerts.cases.lifecycle import NOTIFIED
from alerts.cases.scope import Scope
from alerts.config import FindingConfig
from alerts.finding import Finding
from alerts.kind import Standing
from alerts.kinds import KINDS, kind_of
from alerts.report.render import render, sources_of
from alerts.stated_severity import ORDER
from alerts.xid_kinds import XID_KINDS
from slowrank.telemetry import Subject, Suspicion

CONFIG = FindingConfig()
T0 = 1_795_160_000.0
NOT_OF_A_GPU = {"hang.job", "node.silent"}
FATAL = [
    kind
    for kind, row in {**XID_KINDS, **KINDS}.items()
    if row.standing is Standing.FATAL and row.severity != "warning" and kind not in NOT_OF_A_GPU
]


def fault(kind, at, *, state="raise", weight=6.0, **more):
    fields = {
        "cluster": "c",
        "detector": f"event.{kind}",
        "family": "event",
        "kind": kind,
        "state": state,
        "subject": Subject(type="gpu", cluster="c", node="n", gpu_index=2),
        "ts": T0 + at,
        **dict.fromkeys(("onset", "onset_lo", "onset_hi"), T0 + at),
        "score": 2.0,
        "log_likelihood_ratio": weight,
        "overwhelming": True,
        "severity": kind_of(kind).severity,
    }
    return Suspicion(**(fields | more))


def findings(*suspicions: Suspicion, until: float = 100.0) -> list[Finding]:
    """Return what is shown at the end, of each case that was ever more than suspected."""
    states = [Scope()]
    for ts in sorted({s.ts for s in suspicions}):
        states += [state for _, state in advance(states[-1], ts, CONFIG, inclusive=False)]
        states.append(apply(states[-1], [s for s in suspicions if s.ts == ts], CONFIG))
    states += [state for _, state in advance(states[-1], T0 + until, CONFIG, inclusive=True)]
    scope = states[-1]
    opened = [case for _, case in sorted(scope.cases.items()) if case.opened_at is not None]
    return [render(sources_of(scope, case, CONFIG), CONFIG) for case in opened]


def live(*suspicions: Suspicion, until: float = 100.0) -> list[Finding]:
    return [f for f in findings(*suspicions, until=until) if f.status in NOTIFIED]


def advised(found: Finding) -> tuple[str, str, str, str]:
    why = "" if found.cause is None else found.cause.hypothesis
    return found.kind, found.severity, found.action.code, why


ALONE = {kind: advised(live(fault(kind, 0.0))[0]) for kind in FATAL}


@pytest.mark.parametrize("apart", [0.0, 1.5, 50.0])
def test_the_graver_of_two_leads_in_either_order(apart):
    """Kind, severity, action and cause are those of the graver alone; the other explains as well."""
    for first, second in permutations(FATAL, 2):
        (found,) = live(fault(first, 0.0, weight=6.0), fault(second, apart, weight=5.0))
        (turned,) = live(fault(second, 0.0, weight=5.0), fault(first, apart, weight=6.0))
        assert advised(found) in (ALONE[first], ALONE[second])
        for alone in (ALONE[first], ALONE[second]):
            assert ORDER.index(found.severity) >= ORDER.index(alone[1])
        assert (found.severity, found.action.code) == (turned.severity, turned.action.code)
        assert found.cause is not None
        assert {found.cause.hypothesis, *found.cause.alternatives} <= {first, second}


ECC, ROWS, BUS, GSP = "ecc.uncorrectable", "ecc.row_remap_failure", "xid.79", "xid.119"


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ((ECC, BUS), (BUS, "critical", "REBOOT_NODE", BUS)),
        ((ROWS, BUS), (BUS, "critical", "REBOOT_NODE", BUS)),
        ((GSP, BUS), (BUS, "critical", "REBOOT_NODE", BUS)),
        ((ECC, ROWS), (ROWS, "error", "CONTACT_SUPPORT", ROWS)),
        ((ECC, "link.pcie_fatal"), ("link.pcie_fatal", "error", "REBOOT_NODE", "link.pcie_fatal")),
        (("xid.13", ECC), (ECC, "error", "RESET_GPU", ECC)),
        # As grave: the first keeps its finding.
        ((GSP, ECC), (GSP, "error", "RESET_GPU", GSP)),
        ((ECC, GSP), (ECC, "error", "RESET_GPU", ECC)),
    ],
)
def test_what_follows_takes_over_where_it_is_graver(kinds, expected):
    (found,) = live(*(fault(kind, 3.0 * n) for n, kind in enumerate(kinds)))
    assert advised(found) == expected


def test_the_milder_one_that_was_open_becomes_part_of_the_graver():
    """Both keep their ids and keys, so that who was notified of the first is notified of its end."""
    (before,) = findings(fault(ECC, 0.0))
    part, found = findings(fault(ECC, 0.0), fault(BUS, 3.0))
    assert (part.id, part.status, part.resolved_at) == (before.id, "resolved", T0 + 3.0)
    assert part.group_key == found.dedup_key
    assert found.cause is not None
    assert found.cause.alternatives == {ECC: 0.5}


@pytest.mark.parametrize("ends", [True, False])
def test_the_milder_one_is_shown_again_if_it_outlasts_the_graver(ends):
    """A reset brought the GPU back, and its memory has errors as before."""
    over = [fault(BUS, 60.0, state="clear")] if ends else []
    lasting = [fault(ECC, float(at), state="update", onset=T0) for at in range(60, 600, 60)]
    found = live(fault(ECC, 0.0), fault(BUS, 3.0), *over, *lasting, until=600.0)
    assert [f.kind for f in found] == ([ECC] if ends else [BUS])


def test_faults_of_two_gpus_or_of_other_times_are_findings_of_their_own():
    other = msgspec.structs.replace(
        fault(BUS, 3.0), subject=Subject(type="gpu", cluster="c", node="n", gpu_index=3)
    )
    assert [f.kind for f in live(fault(ECC, 0.0), other)] == [ECC, BUS]
    assert [f.kind for f in live(fault(ECC, 0.0), fault(BUS, 70.0))] == [ECC, BUS]
