"""What lists and series have in common: time ranges, and the clusters that a key may read."""

from datetime import datetime, timedelta
from typing import Annotated

from pydantic import BaseModel, Field

from api.http.problems import contradiction
from api.http.times import Moment, Span, parse_span, parse_time
from api.security.auth import Principal

# Longest window (chosen: what is kept of paces, the longest of all telemetry).
LONGEST = timedelta(days=35)

Name = Annotated[str, Field(max_length=128)]


class Range(BaseModel, extra="forbid", populate_by_name=True):
    """A window of time: ``from`` and ``to``, or ``since`` a while ago; ``to`` is now if not given."""

    from_: Moment | None = Field(default=None, alias="from")
    to: Moment | None = None
    since: Span | None = None

    def window(self, now: datetime, default: timedelta) -> tuple[datetime, datetime]:
        """Return the first and the last moment. Raises the 409 problem of a window that cannot be."""
        if self.since is not None and self.from_ is not None:
            raise contradiction("#/query/since", "give from or since, not both")
        ends = now if self.to is None else parse_time(self.to, now)
        try:
            before = ends - (default if self.since is None else parse_span(self.since))
        except OverflowError as error:
            raise contradiction("#/query/since", "that is before the calendar begins") from error
        starts = before if self.from_ is None else parse_time(self.from_, now)
        if starts >= ends:
            raise contradiction("#/query/from", "from must be before to")
        if ends - starts > LONGEST:
            raise contradiction("#/query/from", f"a window has at most {LONGEST.days} days; ask for less")
        return starts, ends


def readable(principal: Principal, cluster: str | None) -> tuple[str, ...] | None:
    """Return the clusters to read, empty for all; None where the key may read nothing of what is asked."""
    asked = (cluster,) if cluster else principal.clusters
    clusters = tuple(name for name in asked if principal.may_see(name))
    return None if asked and not clusters else clusters


def milliseconds(moment: datetime) -> int:
    """Return a time as epoch milliseconds."""
    return round(moment.timestamp() * 1000)
