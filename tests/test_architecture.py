"""Which package may import which: the arrows of the design, checked on the syntax tree of every module."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OURS = {"slowrank", "exporters", "detectors", "alerts", "store", "streams", "api", "simulator"}
# What a module may import besides the modules of its own row and the standard library. Its row is the longest
# prefix of its name. An entry allows the packages below it too, except where the row lies in that package.
# Why: docs/decisions/0007-what-a-package-may-import.md (libraries) and 0019-the-import-table.md (ours).
TABLE = {
    "slowrank": "slowrank.hook",
    "slowrank.hook": "",
    "slowrank.client": "httpx",
    "slowrank.foreign": "slowrank.telemetry",
    "slowrank.settings": "pydantic pydantic_settings",
    "slowrank.telemetry": "msgspec",
    "slowrank.telemetry.hardware": "slowrank.telemetry msgspec",
    "slowrank.telemetry.rows": "slowrank.telemetry msgspec",
    "exporters": "slowrank exporters.dumps exporters.host exporters.nccl exporters.nvml"
    " exporters.scrape kafka",
    "exporters.host": "slowrank exporters",
    "exporters.nvml": "slowrank.telemetry exporters exporters.host pynvml",
    "exporters.dumps": "slowrank.telemetry exporters exporters.host",
    "exporters.nccl": "exporters exporters.host msgspec",
    "exporters.scrape": "slowrank.foreign exporters exporters.host prometheus_client",
    "detectors": "numpy",
    "detectors.changepoint": "detectors numpy numba llvmlite",
    "detectors.changepoint.offline_segmentation": "detectors.changepoint numpy ruptures",
    "detectors.fleet": "",
    "detectors.job": "detectors detectors.job.waits detectors.peers numpy",
    "detectors.job.waits": "detectors detectors.job detectors.changepoint detectors.peers detectors.straggler"
    " numpy",
    "detectors.node": "detectors numpy",
    "detectors.node.gray_envelope": "numpy sklearn",
    "detectors.peers": "detectors detectors.peers.places detectors.straggler numpy",
    "detectors.peers.places": "detectors detectors.peers detectors.straggler numpy",
    "detectors.straggler": "detectors detectors.changepoint detectors.job detectors.peers"
    " detectors.straggler.alternatives detectors.straggler.evidence numpy",
    "detectors.straggler.alternatives": "detectors detectors.peers detectors.straggler"
    " detectors.straggler.evidence numpy",
    "detectors.straggler.evidence": "detectors detectors.changepoint detectors.job detectors.peers"
    " detectors.peers.places detectors.straggler detectors.straggler.alternatives numpy",
    "alerts": "slowrank.telemetry alerts.finding alerts.cases alerts.reasoning alerts.report",
    "alerts.finding": "slowrank.telemetry msgspec",
    "alerts.cases": "slowrank.telemetry alerts alerts.cases.cost alerts.finding alerts.reasoning msgspec",
    "alerts.cases.cost": "",
    "alerts.reasoning": "slowrank.telemetry alerts alerts.finding alerts.cases",
    "alerts.report": "slowrank.telemetry alerts alerts.finding alerts.cases alerts.reasoning",
    "store": "slowrank alerts store.access store.evidence store.findings store.telemetry"
    " psycopg psycopg_pool",
    "store.access": "store psycopg",
    "store.dashboard": "store store.telemetry psycopg",
    "store.evidence": "slowrank.telemetry alerts store store.findings store.telemetry psycopg",
    "store.findings": "slowrank.telemetry alerts store psycopg",
    "store.telemetry": "slowrank.telemetry detectors.fleet store store.findings numpy psycopg",
    # The stages `node`, `job` and `cluster` exchange messages and never import each other.
    "streams": "slowrank.telemetry alerts numpy msgspec",
    "streams.node": "slowrank.telemetry detectors alerts streams"
    " streams.node.events streams.node.rules streams.node.detectors numpy",
    "streams.node.events": "slowrank.telemetry alerts streams streams.node.rules",
    "streams.node.rules": "slowrank.telemetry alerts streams streams.node numpy",
    "streams.node.detectors": "slowrank.telemetry detectors alerts streams"
    " streams.node streams.node.rules numpy",
    "streams.job": "slowrank.telemetry detectors streams"
    " streams.job.rows streams.job.detectors numpy msgspec",
    "streams.job.rows": "slowrank.telemetry detectors.peers streams numpy msgspec",
    "streams.job.detectors": "slowrank.telemetry detectors streams.job streams.job.rows numpy msgspec",
    "streams.cluster": "slowrank.telemetry detectors alerts streams streams.cluster.incidents numpy msgspec",
    "streams.cluster.incidents": "slowrank.telemetry detectors.node alerts streams streams.cluster msgspec",
    "streams.rollup": "slowrank.telemetry detectors.fleet store.telemetry streams streams.node numpy",
    "streams.config": "slowrank detectors.node alerts streams"
    " streams.node streams.job streams.cluster numpy msgspec",
    "streams.pipeline": "slowrank.telemetry alerts streams"
    " streams.node streams.node.events streams.job streams.rollup streams.config",
    "streams.files": "slowrank.telemetry detectors detectors.changepoint.offline_segmentation alerts"
    " streams streams.pipeline numpy msgspec pyarrow",
    # The only package that knows Kafka and Faust.
    "streams.runtime": "slowrank detectors alerts store streams.job streams.rollup streams.config"
    " streams.runtime.kafka streams.runtime.monitoring streams.runtime.partitions streams.runtime.snapshots"
    " numpy faust aiokafka",
    "streams.runtime.kafka": "slowrank streams.runtime.monitoring msgspec aiokafka",
    "streams.runtime.kafka.batches": "streams.runtime.kafka faust aiokafka",
    "streams.runtime.monitoring": "slowrank alerts store streams streams.job"
    " streams.runtime streams.runtime.kafka aiokafka msgspec prometheus_client",
    "streams.runtime.partitions": "slowrank.telemetry alerts streams"
    " streams.node streams.node.events streams.rollup"
    " streams.runtime.kafka streams.runtime.monitoring streams.runtime.snapshots"
    " msgspec aiokafka",
    "streams.runtime.snapshots": "streams.cluster streams.node.rules streams.config streams.runtime.kafka"
    " streams.runtime.monitoring numpy msgspec cramjam",
    "api": "slowrank alerts store api.alertmanager api.delivery api.foreign api.http api.pages api.routes"
    " api.routes.ingest api.security fastapi msgspec prometheus_client psycopg psycopg_pool",
    "api.alertmanager": "slowrank alerts store.findings api api.delivery.receivers api.http api.routes"
    " api.security fastapi psycopg pydantic",
    "api.delivery": "slowrank alerts store api api.delivery.receivers api.http api.security"
    " aiosmtplib certifi httpx msgspec prometheus_client psycopg psycopg_pool",
    "api.delivery.receivers": "slowrank msgspec",
    "api.foreign": "slowrank.foreign slowrank.telemetry api cramjam google.protobuf opentelemetry.proto",
    "api.http": "slowrank.telemetry store.access api api.security fastapi starlette msgspec psycopg pydantic",
    "api.http.connections": "api api.http fastapi uvicorn h11",
    "api.pages": "slowrank alerts store api api.http api.pages.routes api.routes api.security"
    " fastapi jinja2 markupsafe psycopg pydantic",
    "api.pages.routes": "alerts store api api.delivery api.http api.pages api.routes api.security"
    " fastapi markupsafe markdown_it psycopg pydantic",
    "api.routes": "slowrank detectors.fleet alerts store api api.delivery api.http api.routes.ingest"
    " api.security fastapi starlette prometheus_client psycopg pydantic",
    "api.routes.dashboard": "detectors.changepoint store.dashboard store.telemetry api"
    " api.http api.security fastapi numpy psycopg pydantic",
    "api.routes.ingest": "api api.foreign api.http api.security fastapi pydantic",
    "api.security": "store api api.http fastapi httpx pydantic",
    "simulator": "simulator.cluster simulator.faults",
    "simulator.cluster": "slowrank.telemetry simulator.devices simulator.faults simulator.jobs numpy msgspec",
    "simulator.devices": "slowrank.telemetry simulator.cluster simulator.faults numpy",
    "simulator.faults": "slowrank.telemetry simulator.cluster numpy msgspec",
    "simulator.jobs": "slowrank.telemetry simulator.cluster simulator.faults numpy",
}
ALLOWED = {row: set(names.split()) for row, names in TABLE.items()}
# The command line puts the parts together and may import all of them, and so whatever they hand over.
MODULES = sorted(path for package in OURS for path in (ROOT / package).rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Full names of the modules a module imports anywhere in it, inside functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute here"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in names if name.split(".")[0] not in sys.stdlib_module_names}


def row_of(name: str) -> str:
    """The row of the table that one of our modules, or a name in it, falls under; "" for a library's."""
    return max((row for row in ALLOWED if f"{name}.".startswith(f"{row}.")), key=len, default="")


def module(path: Path) -> str:
    """The dotted name of a module."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def grants(row: str, entry: str, name: str) -> bool:
    """Whether an entry of a row allows the import of a name."""
    if f"{row}.".startswith(f"{entry}."):
        return row_of(name) == entry
    return f"{name}.".startswith(f"{entry}.")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_module_imports_only_what_its_package_may(path):
    """An import outside the table is a change of the design, made here first or not at all."""
    row = row_of(module(path))
    forbidden = {n for n in imports(path) if not any(grants(row, entry, n) for entry in ALLOWED[row] | {row})}
    assert not forbidden, f"{path.relative_to(ROOT)} may not import {', '.join(sorted(forbidden))}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nobody_imports_the_command_line(path):
    """The command line stands above everything: whatever it needs of a package, the package holds."""
    assert not {name for name in imports(path) if f"{name}.".startswith("cli.")}


@pytest.mark.parametrize("row", ALLOWED)
def test_table_allows_nothing_that_nobody_imports(row):
    """What a row names is used, so that it reads as the package's dependencies."""
    used = {name for path in MODULES if row_of(module(path)) == row for name in imports(path)}
    assert not {name for name in ALLOWED[row] if not any(grants(row, name, n) for n in used)}


def test_every_package_has_a_row():
    """A new folder states what it depends on."""
    assert {module(path.parent) for path in MODULES} <= set(ALLOWED)
