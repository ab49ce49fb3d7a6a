"""How old the newest sample is, which says whether the rest of a page can be trusted."""

from datetime import datetime

from api.pages.formats import duration
from api.routes.dashboard.nodes import SILENT


def warning(newest: int | None, now: datetime) -> str:
    """Return what to show where the newest sample (epoch milliseconds) is old; empty where it is not."""
    if newest is None:
        return "No node has sent a sample yet: run `slowrank exporter run` on a node, or `slowrank demo`."
    seconds = now.timestamp() - newest / 1000
    if seconds < SILENT.total_seconds():
        return ""
    return (
        f"The newest sample is {duration(seconds)} old: what happened since is not shown. /readyz shows why."
    )
