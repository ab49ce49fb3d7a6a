"""What the kernel log calls fatal is a finding at once, from nothing but the one line."""

import pytest

from alerts.cases.lifecycle import NOTIFIED
from slowrank.telemetry import NodeEvent
from slowrank.telemetry.hardware.xids import XIDS
from streams.pipeline import local_pipeline

T0 = 1_795_160_000.0
RESET = "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
REBOOT = "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
DRAIN = "GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)"
NO_MORE = "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"


def event(code, message="", *, node="n", ts=0.0, seq=0, **subject):
    """One event of a node's kernel log; of its first GPU, unless it says whose."""
    return NodeEvent(
        cluster="c",
        node=node,
        ts=T0 + ts,
        seq=seq,
        source="kmsg",
        code=code,
        subject=subject or {"gpu_index": 0},
        message=message,
    )


def findings(*events, until=3.0):
    """The last version of every finding that these events give, by kind and node."""
    pipeline, last = local_pipeline(), {}
    for found in [f for e in sorted(events, key=lambda e: e.ts) for f in pipeline.process(e)]:
        last[found.kind, found.subject.node] = found
    for found in pipeline.tick(T0 + until):
        last[found.kind, found.subject.node] = found
    return last


def opened(*events, until=3.0):
    """Those that are open."""
    return {key: f for key, f in findings(*events, until=until).items() if f.status in NOTIFIED}


@pytest.mark.parametrize("code", [62, 92, 110, 136, 140, 143, 154, 158])
def test_a_fatal_xid_alone_is_a_finding(code):
    """One line, on a node of which nothing else is known: open within its second, an error or worse."""
    [found] = opened(event(f"xid.{code}"), until=1.0).values()
    assert found.severity in ("error", "critical")
    assert found.action.code not in ("NONE", "WATCH")
    assert found.detected_at == T0
    assert found.subject.gpu_index == 0


@pytest.mark.parametrize(
    ("code", "kind"),
    [(61, "xid.61"), (93, "xid.93"), (121, "xid.121"), (163, "xid.163"), (199, "xid"), (999, "xid")],
)
def test_an_unknown_xid_is_a_finding_too(code, kind):
    """A newer driver's code, or one without a rule of its own, is at least a warning, and is named."""
    [found] = opened(event(f"xid.{code}")).values()
    assert (found.kind, found.severity, found.action.code) == (kind, "warning", "RUN_DIAG")
    assert found.title.startswith(f"n GPU 0 reports XID {code}: ")
    assert [e.metric for e in found.evidence] == [f"xid.{code}"]


@pytest.mark.parametrize("apart", [0.001, 6.0])
def test_many_unknown_xids_of_a_gpu_are_one_finding(apart):
    """200 codes that are not in the catalogue, in one burst or one by one, are one case of one kind."""
    told = [event(f"xid.{1000 + i}", ts=apart * i, seq=i) for i in range(200)]
    pipeline, versions = local_pipeline(), []
    for one in told:
        versions += pipeline.process(one)
    versions += pipeline.tick(told[-1].ts + 3.0)
    assert {(f.kind, f.severity, f.subject.gpu_index) for f in versions} == {("xid", "warning", 0)}
    assert len({f.id for f in versions}) == 1
    assert versions[-1].status in NOTIFIED
    assert versions[-1].evidence[0].metric == ("xid.1000" if apart < 1.0 else "xid.1199")


@pytest.mark.parametrize(
    ("message", "action"),
    [
        (RESET, "RESET_GPU"),
        (REBOOT, "REBOOT_NODE"),
        (DRAIN, "RESET_GPU"),
        ("?", "RUN_DIAG"),
        # No number of an action: too great for a number of evidence.
        ("GPU recovery action changed from 0x0 (None) to " + "9" * 350, "RUN_DIAG"),
    ],
)
def test_the_drivers_recovery_action_is_the_findings(message, action):
    """XID 154 says what the driver wants done."""
    [found] = opened(event("xid.154", message)).values()
    assert (found.severity, found.action.code) == ("error", action)


def test_the_drivers_action_comes_before_that_of_the_fault():
    """An uncorrectable error is usually a reset; where the driver asks for a reboot, that is the action."""
    found = opened(event("xid.48"), event("xid.154", REBOOT, ts=0.2, seq=1))
    whole = found["ecc.uncorrectable", "n"]
    assert (whole.action.code, whole.cause.hypothesis) == ("REBOOT_NODE", "ecc.uncorrectable")
    assert len(found) == 1


def test_a_driver_that_needs_no_recovery_ends_the_findings():
    """XID 154 back to None: the findings about that GPU are resolved five minutes later, others stay."""
    found = findings(
        event("xid.62"),
        event("xid.154", RESET, ts=0.1, seq=1),
        event("xid.154", NO_MORE, ts=60.0, seq=2),
        event("xid.62", node="other", gpu_index=1),
        event("xid.154", NO_MORE, node="other", ts=60.0, seq=1),
        event("xid.64", node="worn"),
        event("xid.154", NO_MORE, node="worn", ts=60.0, seq=1),
        until=400.0,
    )
    assert {key: f.status for key, f in found.items() if f.group_key is None} == {
        ("xid.62", "n"): "resolved",
        ("xid.154", "n"): "resolved",
        ("xid.62", "other"): "open",
        ("ecc.row_remap_failure", "worn"): "open",
    }


def test_a_change_to_no_action_is_no_finding():
    """It says that all is well."""
    assert findings(event("xid.154", NO_MORE)) == {}


def test_a_reboot_ends_what_came_before_it():
    """A node that has booted since is not as it was; a memory row that could not be remapped is."""
    boot = event("host.boot", "up", ts=100.0, seq=9, booted=int(T0) + 50)
    found = findings(event("xid.79"), event("xid.64", ts=1.0, seq=1, gpu_index=3), boot, until=500.0)
    assert found["xid.79", "n"].status == "resolved"
    assert found["ecc.row_remap_failure", "n"].status == "open"
    late = event("host.boot", "up", ts=100.0, seq=9, booted=int(T0) - 50)
    assert findings(event("xid.79"), late, until=500.0)["xid.79", "n"].status == "open"


@pytest.mark.parametrize(
    ("code", "message", "kind", "severity", "action"),
    [
        ("nvswitch.sxid", "SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up", "link.nvswitch",
         "error", "RESET_GPU"),
        ("nvswitch.sxid", "SXid (PCI:0000:05:00.0): 19084", "link.nvswitch", "error", "RESET_GPU"),
        ("pcie.aer", "PCIe Bus Error: severity=Uncorrected (Fatal), type=x", "link.pcie_fatal", "error",
         "REBOOT_NODE"),
        ("pcie.aer", "PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=x", "link.pcie_uncorrected",
         "warning", "RUN_DIAG"),
        ("host.hung_task", "INFO: task python:88 blocked for more than 120 seconds.", "host.hung_task",
         "warning", "RUN_DIAG"),
        ("host.hung_task", "INFO: task nv_queue:88 blocked for more than 120 seconds.", "host.hung_task",
         "error", "RUN_DIAG"),
        ("xid.145", "RLW_REMAP Fatal XC1 i0 Link 10 (0x82 0x40)", "link.nvlink_degraded", "error",
         "RESET_GPU"),
        ("xid.150", "MSE_NEW_UNIT (0x82 0x40)", "link.nvlink_degraded", "error", "RESET_GPU"),
        ("xid.74", "NVLink: fatal error detected on link 4", "link.nvlink_degraded", "warning", "RESET_GPU"),
    ],
)  # fmt: skip
def test_other_events_that_are_findings_at_once(code, message, kind, severity, action):
    """NVSwitches, PCIe links, processes that hang and NVLink 5, by what their lines say of themselves."""
    [found] = opened(event(code, message)).values()
    assert (found.kind, found.severity, found.action.code) == (kind, severity, action)
    assert found.evidence[0].note == message


@pytest.mark.parametrize(
    ("message", "latest"),
    [
        ("INFO: task python:88 blocked for more than 120 seconds.", -120.0),
        ("INFO: task python:88 blocked for more than 241 seconds.", -241.0),
        ("INFO: task python:88 blocked", -120.0),
    ],
)
def test_a_task_that_is_blocked_is_dated_by_since_when(message, latest):
    """The kernel looks every two minutes, and may tell only for how long it waits before it tells."""
    [found] = opened(event("host.hung_task", message)).values()
    assert (found.onset, found.onset_lo, found.onset_hi) == (T0 + latest, T0 + latest - 120.0, T0 + latest)
    assert found.detected_at == T0


@pytest.mark.parametrize(
    ("code", "message", "few", "many", "apart"),
    [
        ("nvswitch.sxid", "SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress error", 2, 3, 60.0),
        ("xid.149", "NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x86226 0x1)", 2, 3, 60.0),
        ("pcie.aer", "PCIe Bus Error: severity=Corrected, type=Physical Layer", 31, 32, 1.5),
        ("xid.13", "Graphics Exception", 2, 3, 60.0),
        ("xid.69", "Class Error", 2, 3, 60.0),
    ],
)
def test_what_heals_by_itself_is_a_finding_when_it_repeats(code, message, few, many, apart):
    """Errors that are corrected or not fatal count by their rate, an application's by GPU and day."""

    def lines(count):
        return [event(code, message, ts=apart * n, seq=n) for n in range(count)]

    assert opened(*lines(few), until=apart * few) == {}
    assert len(opened(*lines(many), until=apart * many)) == 1


@pytest.mark.parametrize("number", [n for n, row in XIDS.items() if row.grade == "application"])
def test_what_a_program_repeats_is_a_warning_about_the_program(number):
    """One user's faulty kernels look the same as a faulty GPU: neither an error nor a diagnosis."""
    lines = []
    for n in range(5):
        lines += [event(f"xid.{number}", f"pid={4000 + n}, name=python", ts=60.0 * n, seq=2 * n)]
        lines += [event("xid.43", f"pid={4000 + n}, name=python", ts=60.0 * n + 1.0, seq=2 * n + 1)]

    [found] = opened(*lines, until=300.0).values()

    assert (found.kind, found.severity, found.action.code) == (f"xid.{number}", "warning", "CHECK_APP")


@pytest.mark.parametrize("code", ["xid.43", "xid.45", "xid.106", "xid.162", "nic.link_up"])
def test_clean_up_and_tests_are_no_evidence(code):
    """A thousand lines of an ending application are no finding."""
    assert findings(*(event(code, ts=0.001 * n, seq=n) for n in range(1000))) == {}


def test_a_milder_line_takes_nothing_back():
    """A fatal error of an NVSwitch stays an error when one that heals follows."""
    fatal = event("nvswitch.sxid", "SXid (PCI:x): 20034, Fatal, Link 30", node="n")
    mild = event("nvswitch.sxid", "SXid (PCI:x): 12028, Non-fatal, Link 32", ts=60.0, seq=1)
    [found] = opened(fatal, mild, until=61.0).values()
    assert found.severity == "error"
