"""Turns values of findings into text for people: quantities with units, durations, times, links."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode, urlsplit

from markupsafe import Markup

from api.http.times import rfc3339

# By the digit of a GPU's pip and of a rail; "ok" where nothing is open.
SEVERITIES = ("ok", "info", "warning", "error", "critical")


def duration(seconds: float) -> str:
    """Return a length of time in its two largest units: ``2 h 05 min``."""
    seconds = max(0, round(seconds))
    days, hours, minutes = seconds // 86400, seconds // 3600 % 24, seconds // 60 % 60
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes:02d} min"
    if minutes:
        return f"{minutes} min {seconds % 60:02d} s"
    return f"{seconds} s"


def moment(at: str | datetime | None, spec: str = "seconds") -> Markup:
    """Return a ``<time>`` element in UTC; the page's script adds local time to it. Empty for None.

    ``spec`` is how much is written: ``seconds``, ``minutes``, or on an ``axis`` minutes without the zone.
    """
    if at is None:
        return Markup("")
    when = (datetime.fromisoformat(at) if isinstance(at, str) else at).astimezone(UTC)
    text = when.strftime("%Y-%m-%d %H:%M:%S" if spec == "seconds" else "%Y-%m-%d %H:%M")
    zone = "" if spec == "axis" else " UTC"
    return Markup('<time datetime="{}">{}{}</time>').format(rfc3339(when), text, zone)


def clock(ts: float | None) -> Markup:
    """Return Unix seconds as a ``<time>`` element; a dash for None."""
    return Markup("–") if ts is None else moment(datetime.fromtimestamp(ts, UTC))


def ago(at: str | datetime, now: datetime) -> str:
    """Return how long ago a time was."""
    when = datetime.fromisoformat(at) if isinstance(at, str) else at
    return duration((now - when) / timedelta(seconds=1))


def place_of(subject: Mapping[str, Any]) -> str:
    """Return where a finding is, from the largest place to the smallest."""
    names = ("rack", "switch", "node", "gpu_index", "nic", "port", "rank", "job_id")
    labels = {"gpu_index": "GPU", "job_id": "job"}
    found = ((labels.get(name, name), subject.get(name)) for name in names)
    return ", ".join(f"{label} {value}" for label, value in found if value not in (None, ""))


def web_link(url: str | None) -> str:
    """Return an http or https URL as it is, and nothing for any other."""
    return url if url and urlsplit(url).scheme in ("http", "https") else ""


def prose(text: str) -> Markup:
    """Return text as HTML, with what stands between backticks as code."""
    # The parts alternate: outside and inside of the backticks.
    parts = re.split(r"`+", text)
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if i % 2 else Markup.escape(part)
        for i, part in enumerate(parts)
    )


def query(path: str, **parameters: Any) -> str:
    """Return a path with a query; parameters that are None or empty are left out."""
    given = [(name, value) for name, value in parameters.items() if value not in (None, "", [])]
    return f"{path}?{urlencode(given, doseq=True)}" if given else path
