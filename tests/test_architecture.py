"""Which package may import which: the arrows of the design, checked on the syntax tree of every module."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OURS = {"slowrank", "exporters", "detectors", "streams", "alerts", "store", "api", "simulator"}
# The longest prefix of a module's name says what it may import besides its package and the standard library.
# Why the table is as it is: docs/decisions/0007-what-a-package-may-import.md.
ALLOWED = {
    "slowrank": set(),
    "slowrank.telemetry": {"msgspec"},
    "slowrank.settings": {"pydantic", "pydantic_settings"},
    "detectors": {"numpy", "numba", "llvmlite"},
    "detectors.fleet": set(),
    "detectors.changepoint.offline_segmentation": {"numpy", "ruptures"},
    "detectors.node.gray_envelope": {"numpy", "sklearn"},
    "alerts": {"slowrank"},
    "alerts.finding": {"slowrank", "msgspec"},
    "exporters": {"slowrank", "kafka", "pynvml"},
    "store": {"slowrank", "alerts", "detectors", "psycopg", "psycopg_pool"},
    "streams": {"slowrank", "detectors", "alerts", "store", "numpy", "faust", "aiokafka"}
    | {"msgspec", "pyarrow", "prometheus_client"},
    "api": {"slowrank", "alerts", "detectors", "store", "psycopg", "psycopg_pool", "prometheus_client"}
    | {"fastapi", "starlette", "httpx", "certifi", "msgspec", "pydantic"},
    "api.http.connections": {"slowrank", "fastapi", "uvicorn", "h11"},
    "simulator": {"slowrank", "numpy", "msgspec"},
}
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


def rule(path: Path) -> str:
    """The row of the table that a module falls under."""
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return max((name for name in ALLOWED if f"{module}.".startswith(f"{name}.")), key=len)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_module_imports_only_what_its_package_may(path):
    """An import outside the table is a change of the design, made here first or not at all."""
    allowed = ALLOWED[rule(path)] | {rule(path).split(".")[0]}
    forbidden = {name for name in imports(path) if name.split(".")[0] not in allowed}
    assert not forbidden, f"{path.relative_to(ROOT)} may not import {', '.join(sorted(forbidden))}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nobody_imports_the_command_line(path):
    """The command line stands above everything: whatever it needs of a package, the package holds."""
    assert not {name for name in imports(path) if f"{name}.".startswith("cli.")}


@pytest.mark.parametrize("row", ALLOWED)
def test_table_allows_nothing_that_nobody_imports(row):
    """What a row names of other people's packages is used, so that it reads as the package's dependencies."""
    used = {name.split(".")[0] for path in MODULES if rule(path) == row for name in imports(path)}
    assert ALLOWED[row] - OURS <= used
