"""`slowrank init`: secrets no other user can read, never the same twice, never overwritten."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner

from cli import app


def run(directory) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["init", "--directory", str(directory)])
    return result.exit_code, result.output


def test_every_file_is_readable_by_its_owner_only(tmp_path):
    """Neither .env nor any secret nor the folder around them is open to group or others."""
    assert run(tmp_path)[0] == 0
    written = [tmp_path / ".env", tmp_path / "secrets", *(tmp_path / "secrets").iterdir()]
    assert len(written) > 5
    assert {path.stat().st_mode & 0o077 for path in written} == {0}


def test_two_runs_share_no_secret(tmp_path):
    """Every password, URL and key is random: none occurs in a second directory, or twice in one."""
    contents = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        assert run(tmp_path / name)[0] == 0
        contents += [path.read_text() for path in (tmp_path / name / "secrets").iterdir()]
    assert len(set(contents)) == len(contents)
    assert min(map(len, contents)) >= 43  # 32 random bytes


@pytest.mark.parametrize(
    ("role", "user"),
    [("admin", "postgres"), ("streams", "streams"), ("api", "api"), ("notifier", "notifier")],
)
def test_url_carries_the_password_of_its_role(tmp_path, role, user):
    """The database gets the password from one file and its client from another; they agree."""
    run(tmp_path)
    url = urlsplit((tmp_path / f"secrets/db_{role}_url").read_text())
    assert (url.username, url.hostname, url.path) == (user, "db", "/slowrank")
    assert url.password == (tmp_path / f"secrets/db_{role}_password").read_text()


@pytest.mark.parametrize("existing", [".env", "secrets"])
def test_nothing_is_overwritten(tmp_path, existing):
    """A second run would lock the stack out of its own database, so it stops and names the next step."""
    run(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    code, output = run(tmp_path)
    assert code == 1
    assert existing in output
    assert "docker compose down -v" in output
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_environment_holds_no_secret(tmp_path):
    """.env is passed to containers and shown by tools: it holds no password."""
    run(tmp_path)
    lines = [line for line in (tmp_path / ".env").read_text().splitlines() if not line.startswith("#")]
    names = dict(line.split("=", 1) for line in lines)
    assert set(names) == {"SLOWRANK_UID", "SLOWRANK_GID", "KAFKA_CLUSTER_ID", "SLOWRANK_CLUSTER"}
    assert int(names["SLOWRANK_UID"]) > 0
    assert re.fullmatch(r"[A-Za-z0-9_]{22}", names["KAFKA_CLUSTER_ID"])


def test_a_link_that_leads_nowhere_is_not_replaced(tmp_path):
    """A disk that is not mounted now: its .env is not given another place."""
    (tmp_path / ".env").symlink_to("not/mounted")
    code, output = run(tmp_path)
    assert (code, "nothing written" in output) == (1, True)
    assert (tmp_path / ".env").is_symlink()
    assert not (tmp_path / "secrets").exists()
