from pathlib import Path

import pytest

from simulator.faults.catalogue import CATALOGUE
from simulator.jobs.benign import BENIGN

PAGE = (Path(__file__).parents[2] / "docs" / "simulator.md").read_text()
ROWS = {
    line.split("`")[1]: [cell.strip() for cell in line.split("|")[2:-1]]
    for line in PAGE.splitlines()
    if line.startswith("| `")
}


def test_the_page_lists_every_fault_and_no_other():
    """The table has one row for each kind, in the order of the catalogue."""
    assert list(ROWS) == list(CATALOGUE)


@pytest.mark.parametrize("kind", CATALOGUE)
def test_a_row_says_what_the_catalogue_does(kind):
    """Reach, size, duration and shapes are those that faults are drawn from."""
    reach, size, lasts, comes, _ = ROWS[kind]
    row = CATALOGUE[kind]
    assert (reach, comes) == (row.scope, ", ".join(row.shapes))
    assert size in ("–", f"{row.size[0]:g}–{row.size[1]:g} {row.unit}")
    assert (lasts == "repair") == (row.minutes is None)
    if lasts.endswith("min") and row.minutes is not None:
        assert float(lasts.split()[0]) == row.minutes


def test_the_page_speaks_of_every_kind_of_confounder():
    """Each benign workload is mentioned by its first word."""
    text = PAGE.lower()
    assert not [name for name in BENIGN if name != "plain" and name.split(",")[0].split()[0][:6] not in text]
