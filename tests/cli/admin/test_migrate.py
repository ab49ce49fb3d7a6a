"""``slowrank migrate``: applies, repeats without effect, and lists what is missing."""

import pytest
from typer.testing import CliRunner

from cli import app


def run(*arguments):
    return CliRunner().invoke(app, ["migrate", *arguments])


def test_applies_once(database):
    """The first run names what it applied; the second has nothing to do."""
    first, second = run("--dsn", database), run("--dsn", database)
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert "applied 0001_roles" in first.stdout
    assert "applied" not in second.stdout
    assert "nothing to do" in second.stdout


def test_without_database_names_the_setting(monkeypatch, tmp_path):
    """No URL anywhere is an error that names the setting."""
    monkeypatch.chdir(tmp_path)
    for name in ("SLOWRANK_DATABASE_URL", "SLOWRANK_DATABASE_URL_FILE"):
        monkeypatch.delenv(name, raising=False)
    result = run()
    assert result.exit_code == 2
    assert "SLOWRANK_DATABASE_URL" in result.stderr


@pytest.mark.parametrize("dsn", ["postgresql://127.0.0.1:1/x", "postgresql://["])
def test_unreachable_or_malformed_is_a_plain_error(dsn):
    """A server that is not there, or a URL that is none, ends in one message and no traceback."""
    result = run("--dsn", dsn)
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert result.stderr.strip()
    assert "\ufffd" not in result.stderr


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("SLOWRANK_DATABASE_URL", "nonsense", "use postgresql://"),
        ("SLOWRANK_DATABASE_URL_FILE", "/nowhere/url", "/nowhere/url, which cannot be read"),
    ],
)
def test_an_unusable_setting_is_named(monkeypatch, name, value, told):
    """The message names the wrong setting and the values it accepts."""
    monkeypatch.delenv("SLOWRANK_DATABASE_URL", raising=False)
    monkeypatch.setenv(name, value)
    result = run()
    assert result.exit_code == 2
    assert name in result.stderr
    assert told in result.stderr
