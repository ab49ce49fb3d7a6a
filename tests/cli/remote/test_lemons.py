"""Findings as the API serves them, read as the faults of machines."""

from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from cli.remote import lemons
from cli.remote.lemons import By, faults
from detectors.fleet.lemon import MachineFault
from slowrank.telemetry import NodeEvent, NodeSample, Record
from slowrank.telemetry.hardware.boards import board_label
from streams.pipeline import local_pipeline


def finding(kind="straggler.fail_slow", **changes):
    return {
        "kind": kind,
        "onset": "2026-11-20T00:00:00Z",
        "subject": {"type": "gpu", "cluster": "c", "node": "n1", "gpu_uuid": "GPU-1", "job_id": "j"},
        "blast_radius": {"jobs": ["j"]},
    } | changes


def test_by_node_or_by_hardware():
    """A finding counts for its node, or for the board it is about, wherever that is."""
    at = 1_795_132_800.0
    assert faults([finding()], By.node) == [MachineFault("n1", at, "j")]
    assert faults([finding()], By.serial) == [MachineFault("GPU-1", at, "j")]
    board = finding(subject={"type": "gpu", "cluster": "c", "serial": "S1", "gpu_uuid": "GPU-1"})
    assert faults([board], By.serial) == [MachineFault("S1", at, "j")]
    assert faults([board], By.node) == []


def fallen_off(node, day, job):
    """Return the last version of the findings where GPU 3 of ``node``, whose board it names, is lost."""
    pipeline, found = local_pipeline(), dict[str, dict[str, Any]]()
    ts = datetime(2026, 11, day, tzinfo=UTC).timestamp()
    head = {"cluster": "c", "node": node, "boot_id": "b"}
    labels = board_label("3", "GPU-8f1c", "1654")
    records: list[Record] = [
        NodeSample(schema=1, seq=s, ts=ts + s, job_id=job, labels={} if s else labels, **head)
        for s in range(40)
    ]
    lost = NodeEvent(source="kmsg", code="xid.79", seq=1, ts=ts + 9, subject={"gpu_index": 3}, **head)
    for record in [*records[:9], lost, *records[9:]]:
        found |= {f.id: f.to_json() for f in pipeline.process(record)}
    found |= {f.id: f.to_json() for f in pipeline.finish()}
    return list(found.values())


def test_a_board_is_followed_from_node_to_node():
    """Findings about a GPU carry the board that its node has named, so it is one machine anywhere."""
    found = [f for n in range(3) for f in fallen_off(f"n{n}", 1 + 2 * n, f"j{n}")]
    assert {(f["subject"]["gpu_uuid"], f["subject"]["serial"]) for f in found} == {("GPU-8f1c", "1654")}
    assert {fault.machine for fault in faults(found, By.serial)} == {"1654"}
    assert {fault.machine for fault in faults(found, By.node)} == {"n0", "n1", "n2"}


@pytest.mark.parametrize(
    "other",
    [
        finding("exporter.stale"),
        finding("self.lag"),
        finding(subject={"type": "job", "cluster": "c", "job_id": "j"}),
        finding(feedback={"verdict": "false_positive"}),
    ],
)
def test_what_is_no_evidence_about_a_machine(other):
    """Telemetry, jobs and findings that people called wrong do not count."""
    assert faults([other], By.node) == []


@pytest.mark.parametrize("form", ["table", "wide", "json", "ndjson", "yaml"])
@pytest.mark.parametrize("bad", ["n1", None])
def test_lemons_are_listed_in_every_form(monkeypatch, form, bad):
    """The command names the machine that fails again and again, and prints a line when there is none."""
    start = datetime(2026, 11, 1, tzinfo=UTC)
    items = [
        finding(onset=(start + timedelta(days=day)).isoformat(), subject={"node": bad, "job_id": f"j{day}"})
        for day in range(12)
    ]
    api = SimpleNamespace(each=lambda request: iter(items))
    monkeypatch.setattr(lemons, "client", lambda url, key: nullcontext(api))
    app = typer.Typer()
    app.command()(lemons.lemons)
    result = CliRunner().invoke(app, ["--fleet", "500", "-o", form])
    assert result.exit_code == 0, result.output
    assert ("n1" in result.output) == (bad is not None)
