"""docs/records.md: metrics of samples are those of the schema, as the hint about an unknown one says."""

from pathlib import Path

import metrics_table

from slowrank.telemetry.names import METRICS, hint

PAGE = (Path(__file__).resolve().parents[2] / "docs/records.md").read_text()


def test_the_table_of_metrics_is_written_from_the_schema():
    """Each metric is listed with its unit and kind."""
    assert metrics_table.page(PAGE) == PAGE, "run: PYTHONPATH=. python scripts/metrics_table.py"


def test_the_hint_names_the_page_that_lists_the_metrics():
    """Of a name that is like no metric."""
    assert hint("zzz", METRICS) == "; docs/records.md lists them"
    assert all(f"\n| `{metric}` | " in PAGE for metric in METRICS)
