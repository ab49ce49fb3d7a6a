"""Make a virtual environment from a lock file with hashes. Needs only Python.

python3 scripts/environment.py .venv dev
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def stop(message: str) -> None:
    sys.exit(f"environment: {message}")


def create(directory: Path) -> None:
    """Create an empty environment with pip, unless the directory already has one."""
    if (directory / "bin/python").exists():
        return
    try:
        import ensurepip  # noqa: F401 (only whether it is there)
        import venv  # noqa: F401 (only whether it is there)
    except ImportError:
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        stop(f"no venv module here; on Debian and Ubuntu: apt-get install python{version}-venv")
    subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)


def install(directory: Path, role: str) -> None:
    """Install what requirements/ROLE.txt pins, each file checked against its hash; then slowrank."""
    python = str(directory / "bin/python")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    if subprocess.run([*pip, "--version"], stdout=subprocess.DEVNULL, check=False).returncode != 0:
        subprocess.run([python, "-m", "ensurepip"], stdout=subprocess.DEVNULL, check=True)
    locks = [flag for name in (role, "build") for flag in ("-r", str(ROOT / f"requirements/{name}.txt"))]
    subprocess.run([*pip, "install", "--require-hashes", *locks], check=True)
    # With build isolation pip would download the build backend again, without hashes; the line above has
    # installed it from its lock.
    # One after the other: an older distribution named slowrank owned the command and must be replaced first.
    for project in (ROOT / "slowrank", ROOT):
        subprocess.run([*pip, "install", "--no-build-isolation", "--no-deps", "-e", str(project)], check=True)


def main(directory: str, role: str) -> None:
    if sys.version_info < (3, 11):  # noqa: UP036 (runs before any environment, on any Python)
        version = sys.version.split()[0]
        stop(f"Python 3.11 or newer is needed, {sys.executable} is {version}. Try: make PYTHON=python3.12")
    print(f"installing the {role} environment into {directory}")
    create(Path(directory))
    try:
        install(Path(directory), role)
    except subprocess.CalledProcessError as error:
        stop(f"`{' '.join(error.cmd[:6])} …` failed; see above")
    # The target of the make rule, written last: after a failed installation make starts again.
    (Path(directory) / "installed").touch()


if __name__ == "__main__":
    main(*sys.argv[1:])
