"""The plugin that divides the tests among processes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from side_by_side import spread

ROOT = Path(__file__).parents[2]
CONFTEST = """
import json, os, time
import pytest

@pytest.fixture(autouse=True)
def noted(request):
    began = time.monotonic()
    yield
    with open("noted", "a") as file:
        file.write(json.dumps([request.node.name, os.getpid(), began, time.monotonic()]) + "\\n")
"""
TESTS = """
import time
import pytest

@pytest.mark.alone
def test_alone_{n}(): time.sleep(0.2)

def test_one_{n}(): time.sleep(0.2)

def test_two_{n}(): assert {n}

@pytest.mark.slow
@pytest.mark.integration
def test_waits_{n}(): time.sleep(0.3)
"""


@pytest.fixture(scope="module")
def noted(tmp_path_factory):
    """What ran where and when in three processes, by name: process, begin and end; and what was printed."""
    tmp_path = tmp_path_factory.mktemp("checkout")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  slow:\n  integration:\n  alone:\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for n in range(3):
        (tmp_path / f"test_{n}.py").write_text(TESTS.format(n=n))
    options = ["-p", "side_by_side", "-n", "3"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT / "scripts"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = (tmp_path / "noted").read_text().splitlines()
    return {name: place for name, *place in map(json.loads, lines)}, done.stdout


@pytest.mark.slow
def test_every_test_is_run_once_and_named_as_ever(noted):
    """A failure is shown under the name by which pytest runs the test again."""
    ran, printed = noted
    assert len(ran) == 12
    assert "1 failed, 11 passed" in printed
    assert "FAILED test_0.py::test_two_0 - " in printed


@pytest.mark.slow
def test_a_file_stays_together(noted):
    """The tests of a file are run by one process, one after the other."""
    ran, _ = noted
    for n in range(3):
        assert ran[f"test_one_{n}"][0] == ran[f"test_two_{n}"][0]


@pytest.mark.slow
def test_nothing_runs_beside_what_is_alone(noted):
    """No other test begins or ends between begin and end of one that is marked so."""
    ran, _ = noted
    for name, (_, began, ended) in ran.items():
        if "alone" in name:
            others = [place for other, place in ran.items() if other != name]
            assert all(end <= began or begin >= ended for _, begin, end in others)


def test_slow_units_are_spread_over_the_run():
    """Single tests and slow files come evenly among the first files, and what is alone comes last."""
    slow = ["a.py::test_1", "c.py::test_2", "x.py", "y.py"]
    units = dict.fromkeys(["a.py", "b.py", "alone", "c.py", "d.py"], False) | dict.fromkeys(slow, True)
    assert spread(units) == [
        *("a.py", "a.py::test_1", "x.py", "y.py"),
        *("b.py", "c.py::test_2", "c.py", "d.py", "alone"),
    ]
