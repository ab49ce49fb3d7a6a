"""The command itself: what holds for every command."""

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from cli import COMMANDS, app
from slowrank import __version__


@pytest.mark.parametrize(
    ("command", "absent"),
    [("topics create", "kafka"), ("findings list", "httpx"), ("streams run", "aiokafka")],
)
def test_a_package_of_another_role_is_named(command, absent):
    """Where a role's packages are missing the command names them, and how to get them; it does not trace."""
    call = f"import sys; sys.modules[{absent!r}] = None; from cli import main; main()"
    done = subprocess.run([sys.executable, "-c", call, *command.split()], capture_output=True, text=True)
    assert done.returncode == 2
    assert f"needs {absent}" in done.stderr
    assert "pip install" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command):
    """--help of every command is there, and offers nothing that is not this command's."""
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert "Usage" in result.stdout
    assert "--install-completion" not in result.stdout


def test_the_version_is_an_option_too():
    """As with other commands."""
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"slowrank {__version__}\n")


@pytest.mark.parametrize(
    ("words", "found"), [("slowrank fin", "findings"), ("slowrank silence ex", "expire")]
)
def test_shells_complete_commands(words, found):
    """With the script of `slowrank --show-completion`, which calls the command like this."""
    call = "from cli import app; app(prog_name='slowrank')"
    asked = {"_SLOWRANK_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = subprocess.run(
        [sys.executable, "-c", call], env=os.environ | asked, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [found]
