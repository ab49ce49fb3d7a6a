"""Files that only their owner can read: whole or as they were."""

import signal
import subprocess
import sys
import textwrap

from cli.admin.private_file import set_aside, write_private


def test_a_file_is_replaced_whole_and_private(tmp_path):
    """Its mode is its owner's alone, also where a file open to others stood; nothing else is left."""
    path = tmp_path / "sub/key"
    write_private(path, "first")
    path.chmod(0o644)
    write_private(path, "second")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("second", 0o600)
    assert [p.name for p in path.parent.iterdir()] == ["key"]


def test_a_link_is_replaced_and_not_followed(tmp_path):
    """What it leads to stays as it is."""
    (tmp_path / "elsewhere").write_text("not ours")
    (tmp_path / "key").symlink_to("elsewhere")
    write_private(tmp_path / "key", "ours")
    assert (tmp_path / "elsewhere").read_text() == "not ours"


def test_a_writer_that_is_killed_leaves_the_earlier_file(tmp_path):
    """SIGKILL at the moment the content would be written: the earlier key is still there."""
    path = tmp_path / "key"
    write_private(path, "earlier")
    script = """
        import os, pathlib, signal, sys
        from cli.admin import private_file

        def killed(*arguments, **options):
            os.kill(os.getpid(), signal.SIGKILL)

        os.fdopen = killed
        private_file.write_private(pathlib.Path(sys.argv[1]), "later")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script), str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_text() == "earlier"


def test_each_file_set_aside_keeps_its_name(tmp_path):
    """None is written over another."""
    for n in range(3):
        (tmp_path / "key").write_text(str(n))
        assert set_aside(tmp_path / "key") == tmp_path / f"key.{n + 1}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["key.1", "key.2", "key.3"]
    assert (tmp_path / "key.1").read_text() == "0"
