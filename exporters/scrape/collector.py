"""Metrics of other exporters on the node, such as dcgm-exporter, read as Prometheus does."""

import logging
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from exporters.collector import NOTHING, Columns, Event, Instant, Reading
from exporters.host.device_threads import DeviceThreads
from exporters.scrape.page import PageFailed, ScrapedPage, fetch, parse
from slowrank.foreign.node_values import NodeValues, Values, Xid, gauges
from slowrank.foreign.rules import RULES

_log = logging.getLogger(__name__)

# Seconds for which gauges are held where a target does not answer. Chosen: three times the longest read.
HELD_SECONDS = 15.0
# Unknown metric names that the log shows of each target.
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class _Answer:
    page: ScrapedPage | PageFailed
    seconds: float


@dataclass(slots=True)
class _Target:
    """The state of one URL: its values, its failures, and when it was last read."""

    url: str
    node: NodeValues = field(default_factory=NodeValues)
    failures: Counter[str] = field(default_factory=Counter)
    refused: Mapping[str, int] = field(default_factory=dict)
    scrapes: int = 0
    seconds: float = 0.0
    last: Values = field(default_factory=Values)
    boards: dict[str, str] = field(default_factory=dict)
    read: float = -math.inf

    def values(self, answer: _Answer | None, now: Instant) -> Values:
        """Return the values of this tick; None: the target has not answered."""
        if answer is not None:
            self.scrapes += 1
            self.seconds = answer.seconds
            if isinstance(answer.page, ScrapedPage):
                return self._taken(answer.page, now)
            self._count(answer.page)
        held = now.monotonic - self.read <= HELD_SECONDS
        return Values(gpu=gauges(self.last.gpu), nic=gauges(self.last.nic)) if held else Values()

    def _taken(self, page: ScrapedPage, now: Instant) -> Values:
        if self.read == -math.inf:
            names = ", ".join(sorted(page.unknown)[:_SHOWN]) or "none"
            _log.info(
                "%s: %d values; metrics that fill no column: %d (%s)",
                self.url,
                len(page.points),
                len(page.unknown),
                names,
            )
        self.refused, self.read, self.boards = page.refused, now.monotonic, page.boards
        self.last = self.node.at(now.wall, page.points)
        return self.last

    def _count(self, problem: PageFailed) -> None:
        self.failures[problem.reason] += 1
        if self.failures.total() == 1:
            _log.warning("%s; from now on counted in scrape_failures_total", problem)


class ScrapeCollector:
    """Read every URL once a tick, each in a thread of its own: one that is slow has its values later.

    All values count as the node's own, whatever node their labels name. Where a collector of this exporter
    reads the same column, its value takes precedence.
    """

    name = "scrape"
    columns: Mapping[str, str] = {
        rule.column: f"{name} at a URL of SLOWRANK_EXPORTER_SCRAPE"
        for name, rules in RULES.items()
        for rule in rules
        if rule.how != "xid"
    }

    def __init__(self, urls: Sequence[str] = ()) -> None:
        self._targets = {url: _Target(url) for url in urls}
        self._threads = DeviceThreads(self.name, _read)

    def collect(self, now: Instant) -> Reading:
        answers = self._threads.collect(self._targets)
        found = [target.values(answers.get(url), now) for url, target in self._targets.items()]
        return Reading(
            gpu=_merged(values.gpu for values in found),
            nic=_merged(values.nic for values in found),
            host={column: value for values in found for column, value in values.host.items()},
            events=tuple(_event(xid, now) for values in found for xid in values.xids),
            labels={gpu: board for target in self._targets.values() for gpu, board in target.boards.items()},
        )

    def metrics(self) -> Mapping[str, float]:
        found: dict[str, float] = {"scrape_targets_blocked": self._threads.blocked}
        for url, target in self._targets.items():
            found[f'scrapes_total{{target="{url}"}}'] = target.scrapes
            found[f'scrape_seconds{{target="{url}"}}'] = target.seconds
            for reason, count in target.failures.items():
                found[f'scrape_failures_total{{target="{url}",reason="{reason}"}}'] = count
            for reason, count in target.refused.items():
                found[f'scrape_series_unused{{target="{url}",reason="{reason}"}}'] = count
        return found

    def close(self) -> None:
        self._threads.close()


def _read(url: str) -> _Answer:
    began = time.monotonic()
    try:
        page: ScrapedPage | PageFailed = parse(fetch(url))
    except PageFailed as problem:
        page = problem
    return _Answer(page, time.monotonic() - began)


def _merged(parts: Iterable[Mapping[str, Columns]]) -> dict[str, Columns]:
    devices: dict[str, Columns] = {}
    for part in parts:
        for name, columns in part.items():
            devices[name] = {**devices.get(name, NOTHING), **columns}
    return devices


def _event(xid: Xid, now: Instant) -> Event:
    return Event(
        ts=now.wall,
        source="dcgm",
        code=xid.code,
        severity=xid.severity,
        subject=xid.subject,
        message=f"dcgm-exporter: the last XID of the GPU became {xid.number}",
    )
