"""The jobs of a process in Prometheus' terms, for workers and for `slowrank up` alike."""

from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from streams.job.memory import JobMemory


class JobMetrics(Collector):
    """``read`` is called in the thread of the scrape: it returns what was counted last."""

    def __init__(self, read: Callable[[], JobMemory]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families."""
        memory = self._read()
        text = "Jobs that are analysed, and those that send steps and are not."
        jobs = GaugeMetricFamily("slowrank_jobs", text, labels=["state"])
        jobs.add_metric(["analysed"], memory.jobs)
        jobs.add_metric(["refused"], memory.refused)
        yield jobs
        text = "What jobs take, what they will take at most, and what they may take."
        sizes = GaugeMetricFamily("slowrank_job_memory_bytes", text, labels=["what"])
        sizes.add_metric(["held"], memory.held)
        sizes.add_metric(["reserved"], memory.reserved)
        sizes.add_metric(["limit"], memory.limit)
        yield sizes
