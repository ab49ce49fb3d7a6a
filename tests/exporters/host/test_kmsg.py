import os
import re

import pytest

from exporters.host.kmsg import KmsgCollector, parse, pci_address
from streams.node.rules.event_tables import EVENT_RULES, UNKNOWN_XID

GPUS = {"0000:3b:00": 0, "0000:5e:00": 1}
XID_79 = (
    "4,1234,5000000,-;NVRM: Xid (PCI:0000:5e:00): 79, pid='<unknown>', name=<unknown>, "
    "GPU has fallen off the bus.\n"
)


def test_an_xid_names_its_gpu_its_code_and_its_time():
    """The event has the XID as its code, the GPU by PCI address and index, and the log's own time."""
    event = parse(XID_79, 1_795_000_000.0, GPUS)

    assert event is not None
    assert event.code == "xid.79"
    assert event.severity == "critical"
    assert event.subject == {"pci_bus_id": "0000:5e:00", "xid": 79, "gpu_index": 1}
    assert event.ts == 1_795_000_005.0
    assert event.message.endswith("GPU has fallen off the bus.")


@pytest.mark.parametrize(
    ("message", "code", "subject"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid=991, name=python", "xid.31", {"gpu_index": 0, "xid": 31}),
        ("NVRM: Xid (PCI:0000:af:00): 63, Row Remapper", "xid.63", {"pci_bus_id": "0000:af:00"}),
        ("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal", "nvswitch.sxid", {"sxid": "12028"}),
        ("mlx5_core 0000:18:00.0 ibs3: Link down", "nic.link_down", {"nic": "ibs3", "pci": "0000:18:00.0"}),
        ("mlx5_core 0000:18:00.0 ibs3: Link up", "nic.link_up", {"nic": "ibs3"}),
        (
            "Out of memory: Killed process 4711 (python3) total-vm:1kB",
            "host.oom_kill",
            {"process": "python3"},
        ),
        ("INFO: task kworker/3:1:88 blocked for more than 120 seconds.", "host.hung_task", {"pid": "88"}),
        # Of a part of a GPU, in the driver's two forms.
        ("NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 94, pid=9", "xid.94", {"gpu_index": 0, "xid": 94}),
        ("NVRM: Xid (PCI:0000:5e:00 GPU-I:05 GPU-CI:01): 95, pid=9", "xid.95", {"gpu_index": 1}),
        ("pcieport 0000:17:01.0: AER: Corrected error received", "pcie.aer", {"pci": "0000:17:01.0"}),
    ],
)
def test_what_matters_becomes_an_event(message, code, subject):
    """Each kind of line that matters has its code and its subject."""
    event = parse(f"6,1,1000000,-;{message}\n SUBSYSTEM=pci\n", 0.0, GPUS)

    assert event is not None
    assert event.code == code
    assert subject.items() <= event.subject.items()


@pytest.mark.parametrize(
    ("name", "told", "severity"),
    [
        ("UVM global queu", "UVM_global_queu", "error"),
        ("Web Content", "Web_Content", "warning"),
        ("(sd-pam)", "_sd-pam_", "warning"),
        ("<b>\\x0a\u202e", "_b__x0a_", "warning"),
    ],
)
def test_a_process_may_be_called_anything(name, told, severity):
    """Names hold blanks and worse: the event is there and keeps the rules of a record."""
    event = parse(f"6,1,1,-;INFO: task {name}:88 blocked for more than 120 seconds.", 0.0, GPUS)
    assert event is not None
    assert (event.subject, event.severity) == ({"process": told, "pid": "88"}, severity)
    killed = parse(f"3,1,1,-;Out of memory: Killed process 88 ({name}) total-vm:1kB", 0.0, GPUS)
    assert killed is not None
    assert str(killed.subject["process"]) == told.removesuffix("_") if name == "(sd-pam)" else told


WORDS = {
    ".nonfatal": "RLW_REMAP Nonfatal XC0 i0 Link 02 (0x4 0x1)",
    ".none": "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
}


@pytest.mark.parametrize("name", [c for c in EVENT_RULES if c.startswith("xid.")])
def test_one_xid_is_as_bad_as_the_workers_rules_have_it(name):
    """The severity of the event is what its rule argues for after one fault, if one is enough."""
    rule = EVENT_RULES[name]
    code = re.sub(r"\D", "", name)
    text = WORDS.get(name.removeprefix(f"xid.{code}"), "text")

    event = parse(f"4,1,1,-;NVRM: Xid (PCI:0000:3b:00): {code}, {text}", 0.0, GPUS)

    assert event is not None
    usual = "info" if name.endswith(".none") else "warning"
    assert event.severity == (rule.symptom.severity if rule and rule.faults == 1 else usual)


@pytest.mark.parametrize(
    ("message", "subject", "severity"),
    [
        ("pcieport 0000:17:01.0: AER: Corrected error received: 0000:3b:00.0", {"gpu_index": 0}, "info"),
        ("pcieport 0000:17:01.0: AER: Correctable error message received from 0000:18:00.1", {}, "info"),
        (
            "pcieport 0000:17:01.0: AER: Multiple Uncorrected (Non-Fatal) error received: 0000:18:00.1",
            {"pci": "0000:18:00.1"},
            "warning",
        ),
        (
            "nvidia 0000:5e:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer",
            {"gpu_index": 1},
            "error",
        ),
        (
            "mlx5_core 0000:18:00.0: AER: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Data Link",
            {"pci": "0000:18:00.0"},
            "error",
        ),
    ],
)
def test_a_pcie_error_names_its_device_and_how_bad_it_is(message, subject, severity):
    """As old and new kernels write it: corrected, lost without harm to the link, or with it."""
    event = parse(f"4,1,1,-;{message}", 0.0, GPUS)

    assert event is not None
    assert (event.code, event.severity) == ("pcie.aer", severity)
    assert subject.items() <= event.subject.items()


def test_other_words_of_the_pcie_driver_are_no_errors():
    """A driver's message about its handling of an error is not another error."""
    for message in ("AER: device recovery successful", "AER: enabled with IRQ 34", "DPC: error containment"):
        assert parse(f"4,1,1,-;pcieport 0000:17:01.0: {message}", 0.0, GPUS) is None


def test_a_pcie_error_of_a_network_card_names_the_card(tmp_path, instants):
    """A PCI address that is no GPU's is looked up among the network devices."""
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    keep_open = os.open(path, os.O_RDWR)
    collector = KmsgCollector(lambda: GPUS, lambda: 100.0, path, nic_names=lambda: {"0000:18:00.1": "mlx5_1"})
    line = "4,1,1,-;mlx5_core 0000:18:00.1: PCIe Bus Error: severity=Uncorrected (Fatal), type=x\n"
    os.write(keep_open, line.encode())

    (event,) = collector.collect(instants(0)).events

    assert event.subject["nic"] == "mlx5_1"
    collector.close()
    os.close(keep_open)


def test_an_xid_without_a_rule_is_a_warning():
    """As the finding is that it gives rise to."""
    event = parse("4,1,1,-;NVRM: Xid (PCI:0000:3b:00): 999, text", 0.0, GPUS)

    assert event is not None
    assert event.severity == UNKNOWN_XID.symptom.severity


@pytest.mark.parametrize(
    "record",
    [
        "",
        "garbage",
        "6,1,x,-;NVRM: Xid (PCI:0000:3b:00): 79",
        "6,1,1,-;usb 1-1: new device",
        ";;;",
        XID_79[:20],
    ],
)
def test_other_lines_are_no_events(record):
    """Anything else, cut or malformed lines too, is passed over."""
    assert parse(record, 0.0, GPUS) is None


def test_control_characters_do_not_reach_the_message():
    """What a process can write into the kernel log does not break lines further on."""
    event = parse("6,1,1,-;NVRM: Xid (PCI:0000:3b:00): 13, name=a\x1b[31m\rb\x00\n", 0.0, GPUS)

    assert event is not None
    assert event.message.isprintable()


def test_pci_addresses_of_nvml_and_kernel_meet():
    """NVML's eight-digit domain and the log's four-digit one name the same slot."""
    assert pci_address("00000000:3B:00.0") == pci_address("0000:3b:00") == "0000:3b:00"


def test_new_lines_are_read_once_and_xids_counted(tmp_path, instants):
    """A pipe in the log's place: lines come once, and every known GPU has a count from 0."""
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    keep_open = os.open(path, os.O_RDWR)
    collector = KmsgCollector(lambda: GPUS, lambda: 100.0, path)
    assert collector.metrics()["kernel_log_readable"] == 1
    os.write(keep_open, XID_79.encode())

    first, second = collector.collect(instants(0)), collector.collect(instants(1))

    assert [event.code for event in first.events] == ["xid.79"]
    assert second.events == ()
    assert second.gpu == {"0": {"gpu.xid_events_total": 0}, "1": {"gpu.xid_events_total": 1}}
    collector.close()
    os.close(keep_open)


def test_without_permission_nothing_is_counted(tmp_path, instants):
    """Where the log cannot be read, XIDs are not read, not zero."""
    collector = KmsgCollector(lambda: GPUS, lambda: 0.0, tmp_path / "absent")

    assert collector.collect(instants(0)).gpu == {}
    assert collector.metrics()["kernel_log_readable"] == 0
