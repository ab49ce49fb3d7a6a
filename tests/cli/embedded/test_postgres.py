import os
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import psycopg
import pytest

from cli.embedded.database_folder import EmbeddedError
from cli.embedded.postgres import database


@pytest.fixture
def folder():
    """A folder that root's PostgreSQL user can reach too: pytest's own are closed to others."""
    with tempfile.TemporaryDirectory(prefix="slowrank-test-") as made:
        Path(made).chmod(0o711)
        yield Path(made) / "database"


@pytest.mark.slow
def test_data_outlives_the_server(folder):
    """What was written is there at the next start, and nothing answers in between."""
    with database(folder, throwaway=True) as dsn, psycopg.connect(dsn) as conn:
        conn.execute("CREATE TABLE kept AS SELECT 41 + 1 AS n")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(dsn)
    with database(folder, throwaway=True) as dsn, psycopg.connect(dsn) as conn:
        assert conn.execute("SELECT n FROM kept").fetchone() == (42,)


@pytest.mark.slow
def test_a_server_that_is_killed_is_started_again(folder, caplog):
    """Under the same address, with what was written, and it stops at the end like the first."""
    with database(folder) as dsn:
        with psycopg.connect(dsn) as conn:
            conn.execute("CREATE TABLE kept AS SELECT 41 + 1 AS n")
        first = postmaster(folder)
        os.kill(first, signal.SIGKILL)
        with connected(dsn, within=30) as conn:
            assert conn.execute("SELECT n FROM kept").fetchone() == (42,)
        assert postmaster(folder) != first
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(dsn)
    assert "the embedded PostgreSQL ended (code -9) and is started again" in caplog.text


@pytest.mark.slow
def test_a_start_that_fails_is_tried_again(folder, caplog):
    """What took the server's memory or disk may keep the next one from starting, too."""
    log, aside = folder / "postgres.log", folder.with_name("log")
    with database(folder) as dsn:
        log.rename(aside)
        log.mkdir()
        os.kill(postmaster(folder), signal.SIGKILL)
        until = time.monotonic() + 30
        while "it cannot be started; tried again in 2 s: " not in caplog.text:
            assert time.monotonic() < until
            time.sleep(0.1)
        log.rmdir()
        connected(dsn, within=30).close()


def postmaster(folder):
    """The process id of the server."""
    return int((folder / "data/postmaster.pid").read_text().split()[0])


def connected(dsn, within):
    """Return a connection to a server that is being started again."""
    until = time.monotonic() + within
    while True:
        try:
            return psycopg.connect(dsn)
        except psycopg.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


@pytest.mark.slow
def test_only_who_may_read_the_password_gets_in(folder):
    """The server asks for a password, which lies in a file of its owner, and listens on no network."""
    with database(folder, throwaway=True) as dsn:
        assert stat.S_IMODE((folder / "password").stat().st_mode) == 0o600
        assert stat.S_IMODE((folder / "data").stat().st_mode) == 0o700
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(dsn, password="guess")
        with psycopg.connect(dsn) as conn:
            assert conn.execute("SHOW listen_addresses").fetchone() == ("",)


@pytest.mark.slow
def test_a_folder_in_use_is_refused(folder):
    """A second server on the same folder does not start and names likely causes."""
    with (
        database(folder, throwaway=True),
        pytest.raises(EmbeddedError, match="Is another slowrank using"),
        database(folder, throwaway=True),
    ):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives the server to another user")
def test_root_gets_a_message_about_folders_the_server_cannot_enter(tmp_path):
    """As root, a folder closed to others is refused with the way out."""
    tmp_path.chmod(0o700)
    with pytest.raises(EmbeddedError, match="--data"), database(tmp_path / "database"):
        pass


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG")
def test_a_killed_process_leaves_no_server_behind(folder):
    """After SIGKILL of the owner the server ends by itself."""
    owner = subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(
                f"""
                import pathlib, time
                from cli.embedded.postgres import database
                with database(pathlib.Path({str(folder)!r}), throwaway=True) as dsn:
                    print(dsn, flush=True)
                    time.sleep(60)
                """
            ),
        ],
        env=os.environ | {"TMPDIR": str(folder.parent)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    dsn = owner.stdout.readline().strip()
    psycopg.connect(dsn).close()
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    until = time.monotonic() + 20
    while (folder / "data/postmaster.pid").exists() and time.monotonic() < until:
        time.sleep(0.1)
    assert not (folder / "data/postmaster.pid").exists()
