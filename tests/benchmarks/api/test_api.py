"""The benchmarks of the API, in small, against a real process of it."""

import pytest

from benchmarks.__main__ import main

pytestmark = pytest.mark.slow


def test_latency_beside_a_trivial_endpoint(capsys):
    """Every path answers, and the heat map of 1,024 ranks by 500 bins has at most 300 kB."""
    assert main(["api", "--findings", "2000", "--nodes", "200", "--rounds", "2", "--fresh"]) == 0
    table = capsys.readouterr().out.splitlines()[2:]
    assert [line.split()[0] for line in table][:3] == ["trivial", "list", "detail"]
    assert table[0].split()[3] == "1.0"


@pytest.mark.alone
def test_every_stream_gets_every_event(capsys):
    """Within a second at all clients, while others do not read."""
    options = ["--clients", "40", "--events", "3", "--stuck", "4", "--burst", "40"]
    assert main(["streams", *options]) == 0
    assert "0 clients missed an event" in capsys.readouterr().out
