"""Matchers and durations of `slowrank silence add`."""

from datetime import timedelta

import pytest
import typer
from typer.testing import CliRunner

from cli.remote.silence import app, duration, matcher, shown


@pytest.mark.parametrize("text", ["node=gpu-0423", "node!=a=b", "kind=~throttle.*", "kind!~x", "rack="])
def test_a_matcher_is_read_and_shown_alike(text):
    """In the operators of amtool."""
    assert shown(matcher(text)) == text


def test_a_regular_expression_and_a_negation_differ():
    """The four operators."""
    assert matcher("a!~b") == {"name": "a", "value": "b", "isRegex": True, "isEqual": False}
    assert matcher("a=b") == {"name": "a", "value": "b", "isRegex": False, "isEqual": True}


@pytest.mark.parametrize("text", ["node", "=x", "NODE=x", ""])
def test_what_is_no_matcher_is_refused(text):
    """Before anything is sent."""
    with pytest.raises(typer.Exit):
        matcher(text)


def test_a_silence_of_no_length_is_refused():
    """By its option, before anything is sent."""
    result = CliRunner().invoke(app, ["add", "node=n1", "--for", "0s", "--comment", "x"])
    assert result.exit_code == 2
    assert "--for 0s: a silence of no length" in result.stderr


def test_durations():
    """A number and a unit."""
    assert duration("30m") == timedelta(minutes=30)
    assert duration("1w") == timedelta(weeks=1)
    for text in ("", "4", "h", "-1h", "1y", "99999999h"):
        with pytest.raises(typer.Exit):
            duration(text)
