"""Which package may import which: the arrows of the design, checked on the syntax tree of every module."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OURS = {"slowrank", "exporters", "detectors", "streams", "alerts", "store", "api", "simulator"}
# The longest prefix of a module's name says what it may import besides its package and the standard library.
# msgspec is where a record is read or written; the finding is one.
ALLOWED = {
    "slowrank": set(),
    "slowrank.telemetry": {"msgspec"},
    "slowrank.settings": {"pydantic", "pydantic_settings"},
    "detectors": {"numpy", "numba", "llvmlite", "sklearn", "ruptures"},
    "alerts": {"slowrank"},
    "alerts.finding": {"slowrank", "msgspec"},
    "exporters": {"slowrank", "kafka", "pynvml", "psutil"},
    "store": {"slowrank", "alerts", "psycopg", "psycopg_pool"},
    "streams": {"slowrank", "detectors", "alerts", "store", "numpy", "faust", "mode", "aiokafka"}
    | {"msgspec", "pyarrow", "zstandard", "prometheus_client"},
    "api": {"slowrank", "alerts", "store", "psycopg", "psycopg_pool", "prometheus_client"}
    | {"fastapi", "starlette", "uvicorn", "httpx", "certifi", "msgspec", "pydantic", "jinja2"},
    "simulator": {"slowrank", "numpy", "msgspec"},
}
# The command line puts the parts together and may import all of them, and so whatever they hand over.
CLI = ROOT / "slowrank/cli"
MODULES = sorted(
    path for package in OURS for path in (ROOT / package).rglob("*.py") if CLI not in path.parents
)


def imports(path: Path) -> set[str]:
    """Top-level names a module imports anywhere in it, inside functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute here"
            names.add((node.module or "").split(".")[0])
    return names - set(sys.stdlib_module_names)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_module_imports_only_what_its_package_may(path):
    """An import outside the table is a change of the design, made here first or not at all."""
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    rule = max((name for name in ALLOWED if f"{module}.".startswith(f"{name}.")), key=len)
    forbidden = imports(path) - ALLOWED[rule] - {rule.split(".")[0]}
    assert not forbidden, f"{module} may not import {', '.join(sorted(forbidden))}"
