"""Latency of the dashboard API beside a trivial FastAPI endpoint in the same run, on a filled database.

`scripts/services.py run -- python -m benchmarks api` fills a database of its own on the server of
SLOWRANK_TEST_DSN and drops it afterwards. `slowrank api run` and a FastAPI application with one endpoint that
does nothing are processes of their own. Requests come one after the other over loopback, one path after
the other, so that a disturbance meets all alike. Sizes are those of the answers as sent, compressed.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Mapping, Sequence

import httpx

from benchmarks.api.fill import BUCKETS, RANKS, filled
from benchmarks.api.servers import api, new_keys, trivial
from benchmarks.database import own_database
from store.pool import open_pool

# Goal of the product for a heat map of this size.
HEATMAP_BYTES = 300_000
# Each may read 20 times a second.
KEYS = 64


def main(argv: list[str]) -> int:
    """Print a table of latencies; return 1 when a heat map is larger than its goal."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks api", description=__doc__)
    parser.add_argument("--findings", type=int, default=1_000_000)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--fresh", action="store_true", help="before the first ANALYZE of the tables")
    options = parser.parse_args(argv)
    with own_database() as dsn:
        start = filled(dsn, options.findings, options.nodes, analyze=not options.fresh)
        with open_pool(dsn, name="benchmark") as pool:
            tokens = new_keys(pool, KEYS)
        with api(dsn) as served, trivial() as least:
            urls = {name: served.url + path for name, path in _paths(start).items()}
            measured, sizes = _measured({"trivial": f"{least.url}/trivial"} | urls, tokens, options.rounds)
    print(f"{options.findings} findings, {options.nodes} nodes, {RANKS} ranks x {BUCKETS} roll-ups")
    print("path                 p50 ms    p99 ms   p50 / trivial   p99 / trivial   bytes")
    (p50, p99) = _quantiles(measured["trivial"])
    for name, seconds in measured.items():
        a, b = _quantiles(seconds)
        print(f"{name:18} {a * 1e3:8.2f} {b * 1e3:9.2f} {a / p50:15.1f} {b / p99:15.1f} {sizes[name]:7d}")
    return int(sizes["heatmap"] > HEATMAP_BYTES)


def _paths(start: int) -> dict[str, str]:
    end = start + BUCKETS * 10_000
    return {
        "list": "/api/v1/findings?status=open",
        "detail": f"/api/v1/findings/fnd_{'1000':0>26}",
        "evidence": f"/api/v1/findings/fnd_{'1000':0>26}/evidence",
        "nodes": "/api/v1/nodes?node=n[100-199]",
        "jobs": "/api/v1/jobs",
        "job": "/api/v1/jobs/j",
        "steps": f"/api/v1/jobs/j/steps?from={start}&to={end}",
        "heatmap": f"/api/v1/jobs/j/heatmap?from={start}&to={end}",
        "timeline": "/api/v1/timeline?since=1h",
        "fleet": "/api/v1/fleet",
    }


def _measured(
    urls: Mapping[str, str], tokens: Sequence[str], rounds: int
) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Return the seconds of every request by name, and the bytes of an answer."""
    seconds: dict[str, list[float]] = {name: [] for name in urls}
    sizes: dict[str, int] = {}
    turns = itertools.cycle(tokens)
    with httpx.Client(timeout=60) as client:
        for round_ in range(rounds + 2):
            for name, url in urls.items():
                headers = {"authorization": f"Bearer {next(turns)}"}
                began = time.perf_counter()
                with client.stream("GET", url, headers=headers) as answer:
                    size = sum(map(len, answer.iter_raw()))
                took = time.perf_counter() - began
                if answer.status_code != 200:
                    raise RuntimeError(f"{url}: HTTP {answer.status_code} after {took:.1f} s")
                sizes[name] = size
                # The first two fill caches.
                if round_ >= 2:
                    seconds[name].append(took)
    return seconds, sizes


def _quantiles(values: list[float]) -> tuple[float, float]:
    ordered = sorted(values)
    return statistics.median(ordered), ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]
