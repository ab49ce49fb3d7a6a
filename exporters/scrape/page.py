"""One page of metrics in Prometheus' text format: fetched within bounds, and parsed into points."""

import http.client
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from slowrank.foreign.rules import RULES
from slowrank.foreign.series import Point, board_of, plain, points

# A page that is not complete by then has failed. Chosen: half of Prometheus' default, and far above the time
# in which an exporter on this node answers.
TIMEOUT_SECONDS = 5.0
# Chosen: a hundred times the page of node_exporter on a host with many disks.
MAX_BYTES = 16 * 2**20

_CHUNK = 64 * 1024
_NAME = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")


class PageFailed(Exception):
    """A page could not be used; ``reason`` is its label on ``/metrics``."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


@dataclass(slots=True)
class ScrapedPage:
    """What one page holds: points, the count of refused series by reason, unknown metric names, and labels
    that name boards."""

    points: list[Point] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    unknown: set[str] = field(default_factory=set)
    boards: dict[str, str] = field(default_factory=dict)


def fetch(url: str, timeout: float = TIMEOUT_SECONDS) -> str:
    """Return the text at ``url``. Raises ``PageFailed``; redirects and proxies are not followed."""
    deadline = time.monotonic() + timeout
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=timeout)
    try:
        connection.request("GET", parts.path or "/metrics", headers={"accept": "text/plain;version=0.0.4"})
        # The answer holds the socket of a connection that the server closes.
        with connection.getresponse() as answer:
            if answer.status != 200:
                raise PageFailed("status", f"{url} answers {answer.status}, not 200")
            return _body(answer, url, deadline)
    except TimeoutError as error:
        raise PageFailed("timeout", f"{url} does not answer within {timeout:g} s") from error
    except (OSError, http.client.HTTPException) as error:
        raise PageFailed("connection", f"{url} cannot be read: {error}") from error
    finally:
        connection.close()


def _body(answer: http.client.HTTPResponse, url: str, deadline: float) -> str:
    body = bytearray()
    # read1: one that sends a byte a second must not keep the thread until the chunk is full.
    while chunk := answer.read1(_CHUNK):
        body += chunk
        if len(body) > MAX_BYTES:
            raise PageFailed("oversize", f"{url} has more than {MAX_BYTES} bytes")
        if time.monotonic() > deadline:
            raise PageFailed("timeout", f"{url} is not complete within {TIMEOUT_SECONDS:g} s")
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise PageFailed("not_metrics", f"{url} is no text: {error}") from error


def parse(text: str) -> ScrapedPage:
    """Return the points of a page. Raises ``PageFailed`` where no line of it is a metric."""
    page = ScrapedPage()
    known: list[str] = []
    for line in text.splitlines():
        if not (found := _NAME.match(line)):
            continue
        if found[0] in RULES:
            known.append(line)
        else:
            page.unknown.add(found[0])
    # Only the lines that are used are parsed: a node_exporter has some thousand others.
    try:
        for family in text_string_to_metric_families("\n".join(known) + "\n"):
            for sample in family.samples:
                _add(page, sample.name, sample.labels, sample.value)
    except ValueError as error:
        raise PageFailed("not_metrics", f"a line is not in the text format: {error}") from error
    if not known:
        raise PageFailed("not_metrics", "no line is a metric that fills a column")
    page.refused["unknown_metric"] = len(page.unknown)
    return page


def _add(page: ScrapedPage, name: str, labels: dict[str, str], value: float) -> None:
    known = plain(labels)
    found = points(name, known, value)
    if isinstance(found, str):
        page.refused[found] += 1
    else:
        page.points += found
        page.boards |= board_of(found, known)
