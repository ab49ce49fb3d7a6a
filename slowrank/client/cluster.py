"""Requests about nodes, GPUs and jobs, and about what was measured there."""

from typing import Any

from slowrank.client.objects import Backtest, Band, Gpu, Job, Node, Page, Series
from slowrank.client.request import Request, get, part


def fleet(cluster: str | None = None) -> Request[dict[str, Any]]:
    """Return the request for the fleet's numbers and its grid of racks."""
    return get("/fleet", cluster=cluster)


def nodes(
    *,
    cluster: str | None = None,
    node: str | None = None,
    rack: str | None = None,
    job_id: str | None = None,
    limit: int = 100,
) -> Request[Page[Node]]:
    """Return the request for nodes; ``node`` takes a Slurm host list."""
    return get("/nodes", cluster=cluster, node=node, rack=rack, job_id=job_id, limit=limit)


def gpus(
    *,
    cluster: str | None = None,
    node: str | None = None,
    rack: str | None = None,
    job_id: str | None = None,
    limit: int = 100,
) -> Request[Page[Gpu]]:
    """Return the request for GPUs; ``node`` takes a Slurm host list."""
    return get("/gpus", cluster=cluster, node=node, rack=rack, job_id=job_id, limit=limit)


def gpu(gpu_id: str) -> Request[dict[str, Any]]:
    """Return the request for the history of a GPU, wherever it was."""
    return get(f"/gpus/{part(gpu_id)}")


def jobs(*, cluster: str | None = None, running: bool | None = None, limit: int = 100) -> Request[Page[Job]]:
    """Return the request for jobs, the newest first."""
    return get("/jobs", cluster=cluster, running=running, limit=limit)


def steps(job_id: str, **range_: Any) -> Request[Band]:
    """Return the request for a job's step times; ``range_``: ``from_``, ``to``, ``since``, ``metric``."""
    return get(f"/jobs/{part(job_id)}/steps", **range_)


def heatmap(job_id: str, **range_: Any) -> Request[dict[str, Any]]:
    """Return the request for a job's ranks by time, as bytes of a fixed scale."""
    return get(f"/jobs/{part(job_id)}/heatmap", **range_)


def series(metric: str, **subject: Any) -> Request[Series]:
    """Return the request for a metric of one subject, such as ``node`` and ``instance``."""
    return get("/series", metric=metric, **subject)


def peers(metric: str, **subject: Any) -> Request[dict[str, Any]]:
    """Return the request for the means of a subject and its peers."""
    return get("/peers", metric=metric, **subject)


def run_backtest(rows: bytes) -> Request[Backtest]:
    """Return the request that posts a recording, NDJSON of at most 5 MiB; ``backtest`` reads its result."""
    return Request("POST", "/backtests", content=rows, headers={"content-type": "application/x-ndjson"})


def backtests() -> Request[Page[Backtest]]:
    """Return the request for the newest backtests, without results."""
    return get("/backtests")


def backtest(backtest_id: str) -> Request[Backtest]:
    """Return the request for a backtest with its result."""
    return get(f"/backtests/{part(backtest_id)}")
