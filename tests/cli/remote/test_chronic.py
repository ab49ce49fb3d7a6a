"""``slowrank chronic``: what the API names, in every form."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import typer
from typer.testing import CliRunner

from cli.remote import chronic

ITEM = {
    "cluster": "prod-a",
    "node": "gpu-0423",
    "gpu_index": 5,
    "slowdown_ratio": 1.031,
    "spreads": 7.25,
    "certainty": 0.999998,
    "since": "2026-11-01T00:00:00Z",
    "hours": 312,
    "days": 14,
    "jobs": 5,
    "ranks": 4,
}


@pytest.mark.parametrize("form", ["table", "wide", "json", "ndjson", "yaml"])
@pytest.mark.parametrize("items", [[ITEM], []])
def test_slow_gpus_are_listed_in_every_form(monkeypatch, form, items):
    """The command names the GPU, by how much and for how long, and prints a line when there is none."""
    asked = []

    def each(request):
        asked.append((request.path, request.params))
        return iter(items)

    monkeypatch.setattr(chronic, "client", lambda url, key: nullcontext(SimpleNamespace(each=each)))
    app = typer.Typer()
    app.command()(chronic.chronic)
    result = CliRunner().invoke(app, ["--days", "14", "--cluster", "prod-a", "-o", form])
    assert result.exit_code == 0, result.output
    assert asked == [("/chronic", {"days": 14, "cluster": "prod-a", "limit": 1000})]
    assert ("gpu-0423" in result.output) == bool(items)
    if form in ("table", "wide"):
        assert ("3.1%" in result.output) == bool(items)
        assert ("7.2" in result.output) == (bool(items) and form == "wide")
        assert ("no GPU was slow" in result.output) == (not items)
