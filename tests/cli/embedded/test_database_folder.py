"""What the embedded database does with folders that hold something: it loses nothing and names the next
step."""

import fcntl
import os
import pwd
import signal
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

# Who runs PostgreSQL here.
SERVER = pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else os.geteuid()


@pytest.fixture
def folder():
    """An empty folder that root's PostgreSQL user can reach too."""
    with tempfile.TemporaryDirectory(prefix="slowrank-test-") as made:
        Path(made).chmod(0o711)
        (Path(made) / "data dir").mkdir(mode=0o711)
        yield Path(made) / "data dir"


@pytest.fixture(scope="module")
def stopped():
    """A folder with a database that has been stopped, in which a finding was written."""
    with tempfile.TemporaryDirectory(prefix="slowrank-test-") as made:
        Path(made).chmod(0o711)
        with database(Path(made) / "one", throwaway=True) as dsn, psycopg.connect(dsn) as conn:
            conn.execute("CREATE TABLE found AS SELECT 'a finding' AS title")
        yield Path(made) / "one"


@pytest.fixture
def kept(folder, stopped):
    """A copy of that folder."""
    # cp keeps the owner, which as root is PostgreSQL's user.
    subprocess.run(["cp", "-a", f"{stopped}/.", str(folder)], check=True)
    return folder


def content(folder):
    """Return every path below ``folder`` with its type, mode and text, links not followed."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mode,
            path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None,
        )
        for path in sorted(folder.rglob("*"))
    }


def read(folder):
    with database(folder, throwaway=True) as dsn, psycopg.connect(dsn) as conn:
        return conn.execute("SELECT title FROM found").fetchone()


def file_in_data(folder):
    (folder / "data").mkdir()
    (folder / "data/thesis.txt").write_text("three years")


def file_beside(folder):
    (folder / "thesis.txt").write_text("three years")


def password_of_somebody(folder):
    (folder / "password").write_text("my bank")


def password_with_a_folder(folder):
    file_in_data(folder)
    password_of_somebody(folder)


def data_is_a_file(folder):
    (folder / "data").write_text("1,2,3")


def link_to_nowhere(folder):
    (folder / "data").symlink_to("not/mounted")


def password_is_a_pipe(folder):
    os.mkfifo(folder / "password")


def link_to_an_empty_folder(folder):
    (folder.parent / "elsewhere").mkdir()
    (folder / "data").symlink_to("../elsewhere")


def cluster_of_somebody(folder):
    """A PostgreSQL cluster that something else than slowrank made, with a password file of our form."""
    file_in_data(folder)
    (folder / "data/PG_VERSION").write_text("18\n")
    (folder / "data/postmaster.opts").write_text('/usr/bin/postgres "-D" "/x" "-k" "/run/postgresql"\n')
    (folder / "password").write_text("a" * 48)


def leftover_of_somebody(folder):
    (folder / "slowrank-new-abcdefgh").mkdir()
    (folder / "slowrank-new-abcdefgh/thesis.txt").write_text("three years")


@pytest.mark.parametrize(
    "fill",
    [
        file_in_data,
        file_beside,
        password_of_somebody,
        password_with_a_folder,
        data_is_a_file,
        password_is_a_pipe,
        link_to_nowhere,
        link_to_an_empty_folder,
        cluster_of_somebody,
        leftover_of_somebody,
    ],
)
def test_what_is_not_ours_is_refused_and_left_as_it_is(folder, fill):
    """Not a byte of it changes, and the message names the next step."""
    fill(folder)
    before = content(folder)
    with pytest.raises(EmbeddedError, match="--data"), database(folder, throwaway=True):
        pass
    assert content(folder) == before


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["removed", "empty", "another of ours"])
def test_findings_outlive_their_password(kept, lost):
    """A password that is missing, empty or wrong is set anew; what was written is still there, twice over."""
    before = (kept / "password").read_text()
    match lost:
        case "removed":
            (kept / "password").unlink()
        case "empty":
            (kept / "password").write_text("")
        case _:
            (kept / "password").write_text("0123456789abcdef" * 3)
    assert read(kept) == ("a finding",)
    assert (kept / "password").read_text() != before
    assert (kept / "password").stat().st_mode & 0o777 == 0o600
    assert read(kept) == ("a finding",)


def test_a_cut_password_is_refused_with_what_to_do(kept):
    """It may be the operator's own; moved away, the database is given another."""
    (kept / "password").write_text("0123")
    with pytest.raises(EmbeddedError, match="move it away"), database(kept):
        pass
    assert (kept / "password").read_text() == "0123"
    (kept / "password").unlink()
    assert read(kept) == ("a finding",)


def test_a_damaged_cluster_is_refused_and_kept(kept):
    """Without PG_VERSION nothing starts and nothing is removed; with it back the findings are there."""
    version = (kept / "data/PG_VERSION").read_text()
    (kept / "data/PG_VERSION").unlink()
    before = content(kept)
    with pytest.raises(EmbeddedError, match="PG_VERSION"), database(kept):
        pass
    assert content(kept) == before
    (kept / "data/PG_VERSION").write_text(version)
    assert read(kept) == ("a finding",)


def test_a_cluster_of_another_postgresql_is_refused(kept):
    """Both versions are named, and how its content is moved."""
    (kept / "data/PG_VERSION").write_text("11\n")
    before = content(kept)
    with pytest.raises(EmbeddedError, match=r"PostgreSQL 11.*pg_dump"), database(kept):
        pass
    assert content(kept) == before


def test_a_cluster_made_before_there_was_the_mark_is_known(kept):
    """Its last start marks it as slowrank's."""
    (kept / "data/slowrank").unlink()
    (kept / "password").unlink()
    assert read(kept) == ("a finding",)


@pytest.mark.slow
def test_a_database_on_another_disk_is_used_through_its_link(kept):
    """A link to a database of slowrank's is followed, not replaced."""
    (kept / "data").rename(kept.parent / "disk")
    (kept / "data").symlink_to("../disk")
    assert read(kept) == ("a finding",)
    assert (kept / "data").is_symlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_cluster_of_another_user_is_refused(kept):
    """PostgreSQL would refuse it as well, in its log; the message here names the user to run as."""
    os.chown(kept / "data", SERVER + 1, -1)
    with pytest.raises(EmbeddedError, match=f"user id {SERVER + 1}"), database(kept):
        pass


@pytest.mark.slow
def test_a_path_without_its_root_is_followed(folder, monkeypatch):
    """``--data here`` means below the folder slowrank was started in."""
    monkeypatch.chdir(folder.parent)
    with database(Path(folder.name), throwaway=True) as dsn:
        psycopg.connect(dsn).close()
    assert (folder / "data/PG_VERSION").exists()


OWNER = """
    import pathlib, sys
    from cli.embedded.postgres import database
    with database(pathlib.Path(sys.argv[1])) as dsn:
        print(dsn, flush=True)
        sys.stdin.read()
"""


def owner(folder):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(OWNER), str(folder)],
        env=os.environ | {"TMPDIR": str(folder.parent)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("seen", ["PG_VERSION", "global/pg_control"])
def test_a_killed_initdb_leaves_nothing_in_the_way(folder, seen):
    """SIGKILL while the cluster is being made: none is seen, and the next start makes one and tidies up."""
    making = owner(folder)
    until = time.monotonic() + 20
    while time.monotonic() < until and not list(folder.rglob(seen)):
        time.sleep(0.001)
    making.send_signal(signal.SIGKILL)
    making.communicate()
    assert not (folder / "data").exists()
    # On a busy machine initdb, which holds the lock, may outlive its parent for longer than a start waits.
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.close(descriptor)
    with database(folder, throwaway=True) as dsn:
        psycopg.connect(dsn).close()
    assert sorted(p.name for p in folder.iterdir() if not p.name.startswith("pixeltable")) == [
        "data",
        "password",
        "postgres.log",
    ]


@pytest.mark.slow
def test_of_two_starts_at_once_one_is_refused(folder):
    """On one empty folder: one database, one clear error, nothing lost."""
    both = [owner(folder) for _ in range(2)]
    until = time.monotonic() + 30
    while time.monotonic() < until and all(one.poll() is None for one in both):
        time.sleep(0.05)
    (refused,) = [one for one in both if one.poll() is not None]
    (serving,) = [one for one in both if one is not refused]
    assert "another slowrank using" in refused.communicate()[1]
    assert serving.stdout is not None
    psycopg.connect(serving.stdout.readline().strip()).close()
    serving.communicate()
    assert serving.returncode == 0


@pytest.mark.slow
def test_a_start_right_after_a_kill_waits_for_the_old_server(kept):
    """Whoever starts slowrank anew after SIGKILL gets the findings, not an error about a folder in use."""
    killed = owner(kept)
    assert killed.stdout is not None
    assert killed.stdout.readline()
    killed.send_signal(signal.SIGKILL)
    assert read(kept) == ("a finding",)
    killed.communicate()
