"""Announces which nodes report to the cluster stage, which sees no samples."""

import math
import zlib

from slowrank.telemetry import NodeAnnounced, NodeSample
from slowrank.telemetry.hardware.boards import boards_in
from streams.deadlines import NextDeadline
from streams.suspicions import Location

# Chosen: a third of ``streams.cluster.inventory.EXPECTED_SECONDS``, so that two may be lost.
REPEAT_SECONDS = 300

_Announced = tuple[int, str | None, str | None, str | None, dict[str, str]]
"""Number of the five minutes, the rack and switch of the node, the last job and the boards that it named."""


class NodeAnnouncer:
    """Announces each node when it is first seen, when it moves, has another job or another board, and every
    five minutes.

    Nodes are spread over the five minutes by a hash of their names, the same after a restart.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], tuple[float, _Announced]] = {}
        # What was read last: nearly every sample says the same of its node as the one before.
        self._read: dict[tuple[str, str], tuple[int, str | None, dict[str, str]]] = {}
        self._oldest = NextDeadline()

    def update(self, sample: NodeSample, location: Location, after: float = -math.inf) -> list[NodeAnnounced]:
        """Return the announcement that a sample read at ``location`` makes due, if any.

        ``after``: event time that the announcement may not precede.
        """
        key = (sample.cluster, sample.node)
        # ``hash`` of a string differs between processes.
        turn = math.floor((sample.ts + zlib.crc32(sample.node.encode()) % REPEAT_SECONDS) / REPEAT_SECONDS)
        read = (turn, sample.job_id, sample.labels)
        if self._read.get(key) == read:
            return []
        self._read[key] = read
        before = self._last.get(key, (0.0, None))[1]
        job = location.job_id or (before and before[3])
        boards = boards_in(sample.labels) or (before[4] if before else {})
        content = (turn, location.rack, location.switch, job, boards)
        if before == content:
            return []
        self._last[key] = (sample.ts, content)
        self._oldest.note(sample.ts)
        return [
            NodeAnnounced(
                cluster=location.cluster,
                node=location.node,
                job_id=location.job_id,
                rack=location.rack,
                switch=location.switch,
                # At whole seconds, so that the announcements of a fleet are folded in few steps.
                ts=float(math.ceil(max(sample.ts, after))),
                ports=len(sample.nic_ids),
                gpus=len(sample.gpu_ids),
                boards=boards,
            )
        ]

    def forget(self, oldest: float) -> None:
        """Drop the nodes last announced before ``oldest``."""
        if self._oldest.reached(oldest):
            for key in [key for key, (at, _) in self._last.items() if at < oldest]:
                del self._last[key], self._read[key]
            self._oldest.counted(at for at, _ in self._last.values())
