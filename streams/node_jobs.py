"""What ports do is learnt with the job of their node, and learnt anew with the next one."""

from collections.abc import Iterator

from streams.batch import Batch

RECENT_SECONDS, USUAL_SECONDS = 5.0, 300.0
"""Time constants of what ports do now (a step may send in one burst), and of what is usual for them."""

LEARN_SECONDS = 60.0
CALM = 3.0
"""Beyond so many times the usual, what is seen is not learnt as usual."""


class NodeJobs:
    """The jobs that a page of nodes was last heard to work for."""

    def __init__(self, nodes: int) -> None:
        self._jobs: list[str | None] = [None] * nodes

    def changed(self, batch: Batch) -> Iterator[int]:
        """Take a batch; yield the nodes whose job is another than before."""
        for k, sample in enumerate(batch.samples):
            if sample.job_id != self._jobs[node := int(batch.index[k])]:
                self._jobs[node] = sample.job_id
                yield node

    def forget(self, node: int) -> None:
        """Drop the job of a node."""
        self._jobs[node] = None

    def carry(self, node: int, source: "NodeJobs", row: int) -> None:
        """Take over the job of a node that was ``row`` of another page."""
        self._jobs[node] = source._jobs[row]
