"""What detectors read, held against what collectors can fill: a column filled by none blinds its detector."""

import ast
import re
from pathlib import Path

import pytest

from exporters import registry
from exporters.exporter import OWN_COLUMNS
from slowrank.telemetry.datagram import STEP_COLUMNS
from slowrank.telemetry.schema import (
    CURRENT_SAMPLE_SCHEMA,
    CURRENT_STEP_SCHEMA,
    SAMPLE_SCHEMAS,
    STEP_SCHEMAS,
)

ROOT = Path(__file__).resolve().parents[1]
READERS = ("streams", "detectors", "alerts")
_SAMPLE = SAMPLE_SCHEMAS[CURRENT_SAMPLE_SCHEMA]
SAMPLE_COLUMNS = {*_SAMPLE.gpu.names, *_SAMPLE.nic.names, *_SAMPLE.host.names}

# Collected for charts and for people alone.
READ_BY_NO_DETECTOR = {
    "exporter.scrape_duration_seconds",
    "exporter.spool_bytes",
    "exporter.spool_dropped_total",
    "exporter.step_rows_dropped_total",
    "gpu.xid_events_total",
    "host.cpu_count",
    "host.major_page_faults_total",
    "nic.port.rx_dropped_total",
    "nic.port.rx_packets_total",
    "nic.port.tx_dropped_total",
    "nic.port.tx_errors_total",
    "nic.port.tx_packets_total",
}


@pytest.fixture(scope="module")
def declared():
    """Every column that a collector of the registry says it can fill, with what the machine must have."""
    found = registry.collectors([])
    try:
        return {column: needs for collector in found for column, needs in collector.columns.items()}
    finally:
        for collector in found:
            collector.close()


@pytest.fixture(scope="module")
def read():
    """Every column of a sample that is named in the packages of the detectors, with the modules that do."""
    found: dict[str, set[str]] = {}
    for path in (p for package in READERS for p in sorted((ROOT / package).rglob("*.py"))):
        for pattern in patterns(ast.parse(path.read_text())):
            for column in SAMPLE_COLUMNS:
                if re.fullmatch(pattern, column):
                    found.setdefault(column, set()).add(str(path.relative_to(ROOT)))
    return found


def patterns(tree):
    """Every text in a module as a regular expression; what a formatted text fills in may be any word."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.escape(node.value)
        elif isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.Constant):
            yield "".join(
                re.escape(str(part.value)) if isinstance(part, ast.Constant) else "[a-z_]+"
                for part in node.values
            )


def test_every_column_that_a_detector_reads_can_be_filled(declared, read):
    """A detector of a column that no collector fills can fire on simulated telemetry alone."""
    unfilled = {
        column: modules for column, modules in read.items() if column not in {*declared, *OWN_COLUMNS}
    }

    assert not unfilled
    assert len(read) > 40


def test_every_column_of_a_sample_can_be_filled(declared):
    """Nor does a sample carry a column for nobody; each says what it needs of the machine."""
    assert {*declared, *OWN_COLUMNS} == SAMPLE_COLUMNS | set(STEP_COLUMNS)
    assert all(declared.values())


def test_columns_that_no_detector_reads_are_known_by_name(read):
    """A column that loses its last reader, or gains its first, is noticed."""
    assert SAMPLE_COLUMNS - read.keys() == READ_BY_NO_DETECTOR


def test_every_column_of_a_step_comes_from_the_hook():
    """The step schema has no column that a datagram cannot fill."""
    assert set(STEP_COLUMNS) == set(STEP_SCHEMAS[CURRENT_STEP_SCHEMA].rows.names)
