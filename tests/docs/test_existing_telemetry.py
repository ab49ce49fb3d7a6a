"""docs/existing-telemetry.md: metric names and reasons are those of the code."""

from pathlib import Path
from typing import get_args

import foreign_table

from slowrank.foreign.series import Refusal

PAGE = (Path(__file__).resolve().parents[2] / "docs/existing-telemetry.md").read_text()


def test_the_table_of_names_is_written_from_the_mapping():
    """Each column is listed with the metrics that fill it."""
    assert foreign_table.page(PAGE) == PAGE, "run: PYTHONPATH=. python scripts/foreign_table.py"


def test_every_reason_is_explained():
    """Each reason for which a series is not used has a row."""
    assert all(f"\n| `{reason}` | " in PAGE for reason in get_args(Refusal))
