"""The benchmark runner."""

import importlib
import re
from pathlib import Path

import pytest

from benchmarks.__main__ import BENCHMARKS, main


@pytest.mark.parametrize("module", BENCHMARKS.values(), ids=BENCHMARKS.keys())
def test_every_name_leads_to_a_main(module):
    """Each named benchmark imports and offers main(argv)."""
    assert callable(importlib.import_module(module).main)


def test_make_runs_them_all():
    """`make bench` without a choice runs every benchmark there is."""
    makefile = (Path(__file__).resolve().parents[2] / "Makefile").read_text()
    [names] = re.findall(r"^BENCH \?= (.*)$", makefile, re.MULTILINE)
    assert names.split() == sorted(BENCHMARKS)


@pytest.mark.parametrize("argv", [[], ["nonsense"]])
def test_lists_the_names_when_it_cannot_run(argv, capsys):
    """Without a known name the runner prints the names and exits with status 2."""
    assert main(argv) == 2
    usage = capsys.readouterr().err
    assert all(name in usage for name in BENCHMARKS)


def test_series_reports_absent_data(tmp_path, capsys):
    """The series benchmark reports the parts it skips for lack of data."""
    assert main(["series", "--data", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("skipped") == 2
