"""``slowrank chronic``: list GPUs that are slightly slower than their peers in many jobs, from the API."""

from collections.abc import Callable, Mapping
from typing import Annotated

import typer

from cli.admin.tables import Output, OutputOption, Row, View, ago, show
from cli.remote.client import KeyOption, UrlOption, client
from detectors.fleet.chronic import MAX_DAYS, MIN_DAYS
from slowrank.client import findings


def chronic(
    days: Annotated[
        int, typer.Option(min=MIN_DAYS, max=MAX_DAYS, help="Days to look back, including today.")
    ] = MAX_DAYS,
    cluster: Annotated[str | None, typer.Option(help="Only this cluster.")] = None,
    output: OutputOption = Output.table,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """List GPUs that are permanently slow: slightly, but on several days and in several jobs."""
    with client(url, key) as api:
        found = list(api.each(findings.chronic(days=days, cluster=cluster, limit=1000)))
    empty = f"no GPU was slower in several jobs of {days} days than healthy GPUs differ from each other"
    show(found, output, View(_COLUMNS, empty, _MORE))


_COLUMNS: Mapping[str, Callable[[Row], object]] = {
    "cluster": lambda m: m["cluster"],
    "node": lambda m: m["node"],
    "gpu": lambda m: m["gpu_index"],
    "slower": lambda m: f"{100 * (m['slowdown_ratio'] - 1):.1f}%",
    "since": lambda m: ago(m["since"]),
    "days": lambda m: m["days"],
    "jobs": lambda m: m["jobs"],
    "ranks": lambda m: m["ranks"],
}
_MORE: Mapping[str, Callable[[Row], object]] = {
    "hours": lambda m: m["hours"],
    "spreads": lambda m: f"{m['spreads']:.1f}",
    "sure": lambda m: f"{m['certainty']:.4f}",
}
