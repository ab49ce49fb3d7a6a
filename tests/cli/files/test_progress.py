"""Progress bars: on terminals only, and they change nothing of what passes."""

import io
import sys

import pytest

from cli.files.progress import busy, tracked


class Terminal(io.StringIO):
    """Standard error of a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_items_pass_unchanged(monkeypatch, stream):
    """Whether there is a terminal or not; only a terminal is written to."""
    written = stream()
    monkeypatch.setattr(sys, "stderr", written)
    monkeypatch.setenv("TERM", "xterm")
    with busy("reading"):
        assert list(tracked([1, 2, 3], "detecting")) == [1, 2, 3]
    assert ("detecting" in written.getvalue()) is (stream is Terminal)


def test_a_closed_standard_error_is_none(monkeypatch):
    """As under some supervisors."""
    monkeypatch.setattr(sys, "stderr", None)
    assert list(tracked([1], "x")) == [1]
