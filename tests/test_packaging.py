"""The two wheels: which names they take, what importing them costs, what their locks pin."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import time
import tomllib
from email.message import Message
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest

import slowrank
from cli import COMMANDS
from exporters.collector import Instant
from exporters.steps import StepsCollector
from tests.test_architecture import OURS, imports

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"][
    "packages"
]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
PIN = re.compile(r"[a-z0-9][a-z0-9.-]*==[^\s;]+( ; [^\\]+?)? \\")
HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")


def python(code: str) -> str:
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return run.stdout


def pip(*arguments: str | Path) -> None:
    quiet = ["--quiet", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "pip", *quiet, *arguments], check=True, cwd=ROOT)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> dict[str, Path]:
    """Build both wheels from this tree, by the name of their distribution."""
    folder = tmp_path_factory.mktemp("wheels")
    pip("wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", folder, "./slowrank", ".")
    return {path.name.split("-")[0]: path for path in folder.iterdir()}


def metadata(wheel: Path) -> Message:
    with ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def packages(wheel: Path) -> set[str]:
    with ZipFile(wheel) as archive:
        return {n.split("/")[0] for n in archive.namelist() if ".dist-info/" not in n}


def test_each_package_is_in_one_wheel(wheels):
    """slowrank/ is one wheel, every other package of the tree the other, and the image gets them all."""
    assert packages(wheels["slowrank"]) == {"slowrank"}
    assert packages(wheels["slowrank_server"]) == set(PACKAGES)
    in_the_image = (ROOT / ".dockerignore").read_text().splitlines()
    assert {f"!{name}" for name in ("slowrank", *PACKAGES)} <= set(in_the_image)


def test_the_wheel_has_what_is_no_python(wheels):
    """Templates, styles, scripts, licences, checksums and migrations: all that is in the tree."""
    with ZipFile(wheels["slowrank_server"]) as archive:
        names = set(archive.namelist())
    assert "api/pages/runbooks.md" in names
    assert "!docs/runbooks.md" in (ROOT / ".dockerignore").read_text().splitlines()
    for folder in ("api/pages/templates", "api/static", "migrations"):
        files = {p.relative_to(ROOT).as_posix() for p in (ROOT / folder).rglob("*") if p.is_file()}
        files = {name for name in files if "__pycache__" not in name}
        assert len(files) > 5
        assert files <= names


def test_both_wheels_have_one_version_and_the_server_requires_it(wheels):
    """The version is written in slowrank/__init__.py; the server takes no other slowrank than its own."""
    version = slowrank.__version__
    assert {metadata(wheel)["Version"] for wheel in wheels.values()} == {version}
    assert f"slowrank=={version}" in metadata(wheels["slowrank_server"]).get_all("Requires-Dist", [])
    for requirement in metadata(wheels["slowrank"]).get_all("Requires-Dist", []):
        assert requirement.endswith("extra == 'client'"), "training needs nothing but the wheel itself"


TIMES_TWO_STEPS = """
from slowrank import StepTimer
timer = StepTimer(job_id="fresh", rank=3)
for loss in (2.5, 2.25):
    with timer.step(loss=loss), timer.phase("wait"):
        pass
timer.close()
assert not timer.misuse_total and not timer.dropped_total
"""


def test_the_small_wheel_alone_times_steps_in_an_empty_environment(wheels, tmp_path):
    """Installed without an index and without dependencies, it sends steps to the exporter's listener."""
    environment, socket = tmp_path / "environment", tmp_path / "steps.sock"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    pip("--python", environment / "bin/python", "install", "--no-index", wheels["slowrank"])
    installed = {path.name for path in next(environment.glob("lib/python3*/site-packages")).iterdir()}
    assert installed == {"slowrank", f"slowrank-{slowrank.__version__}.dist-info"}

    listener = StepsCollector([str(socket)])
    try:
        subprocess.run(
            [environment / "bin/python", "-I", "-W", "error", "-c", TIMES_TWO_STEPS],
            check=True,
            cwd=tmp_path,
            env=os.environ | {"SLOWRANK_EXPORTER": str(socket)},
        )
        [rows] = listener.collect(Instant(time.time(), 0.0)).steps
    finally:
        listener.close()
    assert (rows.job_id, [row["loss"] for row in rows.rows]) == ("fresh", [2.5, 2.25])


@pytest.mark.parametrize("name", ["slowrank", *PACKAGES])
def test_no_other_distribution_owns_our_import_names(name):
    """Our top-level names are plain words, so another package that has one must be noticed."""
    owners = set(importlib.metadata.packages_distributions().get(name, []))
    assert owners <= {"slowrank", "slowrank-server"}
    assert name not in sys.stdlib_module_names


def test_importing_slowrank_loads_only_the_standard_library():
    """A training script imports slowrank: it must pull in nothing that is not Python's own, or ours."""
    loaded = python(
        "import sys; before = set(sys.modules)\n"
        "import slowrank; slowrank.StepTimer\n"
        "print(*{name.split('.')[0] for name in set(sys.modules) - before})"
    ).split()
    assert set(loaded) - set(sys.stdlib_module_names) == {"slowrank"}


def test_importing_slowrank_is_quick():
    """The import, the hook included, takes no more CPU than that of asyncio (best of five interpreters)."""
    code = "import time; start = time.process_time()\n{}\nprint(time.process_time() - start)"
    ours, asyncio = (code.format(f"import {what}") for what in ("slowrank; slowrank.StepTimer", "asyncio"))
    times = [(float(python(ours)), float(python(asyncio))) for _ in range(5)]
    assert min(own for own, _ in times) < min(other for _, other in times)


HELP = """
import sys, time
sys.argv = ['slowrank', '--help']
from cli import main
try: main()
except SystemExit as end: assert not end.code
print('LOADED', time.process_time(), *sys.modules)
"""


def test_help_imports_no_command():
    """`slowrank --help` answers from a table: nothing of the web, database or drawing stack is loaded."""
    heavy = {
        "numpy",
        "fastapi",
        "psycopg",
        "kafka",
        "faust",
        "httpx",
        "pydantic",
        "msgspec",
        "rich",
        "asyncio",
    }
    assert not heavy & set(python(HELP).rpartition("LOADED")[2].split())


@pytest.mark.alone
def test_help_is_quick():
    """`slowrank --help` takes less than twice the CPU of an interpreter with asyncio (best of five)."""
    asyncio = "import asyncio, time; print(time.process_time())"
    times = [
        (float(python(HELP).rpartition("LOADED")[2].split()[0]), float(python(asyncio))) for _ in range(5)
    ]
    assert min(own for own, _ in times) < 2 * min(other for _, other in times)


def test_help_names_every_command():
    """The table is what people see: each command with its line."""
    shown = python(HELP).partition("LOADED")[0]
    assert all(name in shown and text in shown for name, (_, text) in COMMANDS.items())


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_lock_pins_and_hashes_everything_and_names_no_index(lock):
    """A lock holds pins, markers and hashes and nothing else: no index, no host, no local path, no option."""
    for line in lock.read_text().splitlines():
        assert PIN.fullmatch(line) or HASH.fullmatch(line), line


def test_every_extra_that_gets_installed_has_a_lock():
    """Roles are installed from locks, so a role without one could not be."""
    assert {lock.stem for lock in LOCKS} >= {"exporter", "streams", "api", "embedded", "all", "dev", "build"}


@pytest.mark.parametrize(("lock", "needs"), [("exporter", set()), ("api", {"numpy"})])
def test_a_gpu_node_and_the_api_install_no_stream_processor(lock, needs):
    """An extra per role keeps the exporter small: no numpy, no Faust, no pyarrow beside the training job.

    The API computes heat maps with numpy.
    """
    names = {line.split("==")[0] for line in (ROOT / f"requirements/{lock}.txt").read_text().splitlines()}
    assert names & {"numpy", "faust-streaming", "pyarrow", "scipy", "scikit-learn"} == needs


def test_what_people_install_needs_no_compiler():
    """Every pin of the roles, the tests and the demo has wheels; the one that has none is for benchmarks."""
    for lock in LOCKS:
        pins = {line.split("==")[0] for line in lock.read_text().splitlines() if "==" in line}
        assert "fast-bocpd" not in pins or lock.stem == "bench"


# What is imported only where an extra is installed that says so.
OPTIONAL = {"ruptures", "sklearn", "numba", "llvmlite", "pyarrow"}


@pytest.mark.parametrize(
    ("role", "parts"),
    [
        ("api", ("api", "store", "alerts", "detectors/changepoint/offline_segmentation.py")),
        ("streams", ("streams",)),
    ],
)
def test_a_role_installs_what_its_packages_import(role, parts):
    """The lock of its extra has the distribution of every import, so that the process starts."""
    locked = {line.split("==")[0] for line in (ROOT / f"requirements/{role}.txt").read_text().splitlines()}
    owners = importlib.metadata.packages_distributions()
    paths = [
        path
        for part in parts
        for path in ([ROOT / part] if part.endswith(".py") else (ROOT / part).rglob("*.py"))
    ]
    names = {name.split(".")[0] for path in paths for name in imports(path)} - OURS - OPTIONAL
    missing = {
        name for name in names if not {owner.lower().replace("_", "-") for owner in owners[name]} & locked
    }
    assert not missing
