"""The published schema says exactly what a finding looks like."""

from typing import Any

import pytest

from alerts.finding import Action, Advice, BlastRadius, Cause, Finding
from api.finding_schema import finding_schema
from slowrank.telemetry.records import Baseline, Evidence, Peers, Subject, Suspect

ADVICE = Advice(
    decision="evict",
    gpu_hours_lost=1.0,
    gpu_hours_to_rebalance=0.1,
    gpu_hours_to_restart=0.9,
    expected_remaining_seconds=600.0,
    expected_gpu_hours=0.5,
    heals_within_10_min=0.4,
)
WHOLE = Finding(
    id="fnd_1",
    dedup_key="c/gpu/u/straggler.fail_slow",
    kind="straggler.fail_slow",
    title="slow",
    severity="critical",
    status="resolved",
    subject=Subject(type="gpu", cluster="c", node="n", gpu_index=1, coords={"dp": 1}),
    onset=1.0,
    onset_lo=0.5,
    onset_hi=1.5,
    detected_at=2.0,
    last_seen_at=3.0,
    resolved_at=4.0,
    detector="peer_step",
    group_key="g",
    slowdown_ratio=1.3,
    job_slowdown_ratio=1.3,
    gpu_hours_lost=1.0,
    gpu_hours_lost_per_hour=2.0,
    cost_per_hour=3.0,
    evidence=(
        Evidence(
            metric="m",
            unit="s",
            detector="d",
            value=1.0,
            baseline=Baseline(median=1.0, mad=0.1, n=5),
            peers=Peers(group="g", n=7, p05=0.9, median=1.0, p95=1.1),
        ),
    ),
    cause=Cause("throttle.thermal", 0.9, {"x": 0.1}, ("network",)),
    suspects=(Suspect(subject=Subject(type="gpu", cluster="c", node="n"), probability=0.5),),
    blast_radius=BlastRadius(("j",), 8, 1, ("fnd_2",)),
    action=Action("WATCH", "Watch it.", ("true",), "https://example.org", advice=ADVICE),
)


def check(value, schema, document, at="#"):
    """Check ``value`` against the part of JSON Schema the document uses; unknown properties are errors."""
    if "$ref" in schema:
        schema = document["$defs"][schema["$ref"].rsplit("/", 1)[1]]
    types: dict[str, Any] = {
        "object": dict,
        "array": (list, tuple),
        "string": str,
        "number": (int, float),
        "integer": int,
    }
    if "type" in schema:
        assert isinstance(value, types.get(schema["type"], object)), at
    if "enum" in schema:
        assert value in schema["enum"], at
    if "const" in schema:
        assert value == schema["const"], at
    if isinstance(value, dict) and "properties" in schema:
        assert set(schema.get("required", ())) <= set(value), at
        for name, inner in value.items():
            assert name in schema["properties"], f"{at}/{name} is not in the schema"
            check(inner, schema["properties"][name], document, f"{at}/{name}")
    if isinstance(value, (list, tuple)):
        for inner in value:
            check(inner, schema["items"], document, f"{at}/items")


def test_a_whole_finding_keeps_the_schema():
    """Every field of a finding with everything in it is described, with its type."""
    document = finding_schema("https://slowrank.example.org/")
    check(WHOLE.to_json(), document, document)
    assert document["$id"] == "https://slowrank.example.org/api/v1/schemas/finding.v1.json"


@pytest.mark.parametrize("change", [{"onset": 3.0}, {"severity": "bad"}, {"surprise": 1}, {"schema": "v2"}])
def test_the_check_itself_notices(change):
    """A wrong type, value or name does not pass the check above."""
    document = finding_schema("https://x")
    with pytest.raises(AssertionError):
        check(WHOLE.to_json() | change, document, document)
