"""Writes what NCCL Inspector writes (format 4.0) for a data-parallel job."""

import json
import random
from dataclasses import dataclass, field
from pathlib import Path

T0 = 1_795_160_000.0


@dataclass
class Writer:
    """A job of ``ranks`` ranks, ``per_node`` to a node, with ``buckets`` (bytes) all-reduced in each step.

    ``slow`` is the factor of a rank's compute by rank; ``small`` collectives a step are below the least size
    and not written, though numbered.
    """

    folder: Path
    ranks: int = 16
    per_node: int = 8
    buckets: tuple[int, ...] = (26_214_400, 26_214_400, 7_340_032)
    step_seconds: float = 1.0
    slow: dict[int, float] = field(default_factory=dict)
    verbose: bool = True
    small: int = 0
    communicator: str = "0x7f8c496ae9f661"
    transfer: float = 0.03
    noise: float = 0.01
    pause_after: int = 10**9
    pid: int = 0

    def __post_init__(self):
        self.random = random.Random(7)
        self.at, self.number, self.steps = T0, 0, 0

    def path(self, rank):
        node = rank // self.per_node
        return self.folder / f"node-{node}" / "nccl-inspector-4711" / f"node-{node}-pid{1000 + rank}.log"

    def run(self, steps):
        """Append some steps to the files of all ranks."""
        lines: dict[int, list[str]] = {rank: [] for rank in range(self.ranks)}
        for _ in range(steps):
            self.at += 30.0 if self.steps == self.pause_after else 0.0
            self.steps += 1
            self.number += self.small
            # Two thirds of the compute precede the first bucket: forward, and the last layers' backward.
            later = len(self.buckets) - 1
            shares = [2 / 3, *[1 / 3 / later] * later] if later else [1.0]
            paces = {
                rank: self.slow.get(rank, 1.0) * self.random.lognormvariate(0, self.noise) for rank in lines
            }
            for share, size in zip(shares, self.buckets, strict=True):
                arrivals = {rank: self.at + share * self.step_seconds * pace for rank, pace in paces.items()}
                self.at = max(arrivals.values()) + self.transfer / len(self.buckets)
                for rank, arrival in arrivals.items():
                    lines[rank].append(self.line(rank, size, arrival))
                self.number += 1
        for rank, written in lines.items():
            self.path(rank).parent.mkdir(parents=True, exist_ok=True)
            with self.path(rank).open("a") as file:
                file.writelines(f"{line}\n" for line in written)

    def line(self, rank, size, arrival):
        micros = round(self.at * 1e6)
        performance = {
            "coll": "AllReduce",
            "coll_sn": self.number,
            "coll_msg_size_bytes": size,
            "coll_exec_time_us": round((self.at - arrival) * 1e6),
            "coll_timing_source": "kernel_gpu",
            "coll_algobw_gbs": 277.210914,
            "coll_busbw_gbs": 485.119099,
        }
        if self.verbose:
            channel = {"channel_id": 0, "kernel_start_ts": round(arrival * 1e6), "kernel_stop_ts": micros}
            performance["event_trace_sn"] = {"coll_start_sn": 1, "coll_stop_sn": 2, "kernel_events": []}
            performance["event_trace_ts"] = {
                "coll_start_ts": round(arrival * 1e6) - 50,
                "coll_stop_ts": round(arrival * 1e6) - 40,
                "kernel_events": [channel | {"kernel_record_ts": micros}],
            }
        return json.dumps(
            {
                "header": {
                    "id": self.communicator,
                    "comm_name": "unknown",
                    "rank": rank,
                    "n_ranks": self.ranks,
                    "nnodes": -(-self.ranks // self.per_node),
                },
                "metadata": {
                    "inspector_output_format_version": "v4.0",
                    "git_rev": "",
                    "rec_mechanism": "nccl_profiler_interface",
                    # The dump thread comes by a little later.
                    "dump_timestamp_us": micros + self.random.randrange(500),
                    "hostname": f"node-{rank // self.per_node}",
                    "pid": self.pid or 1000 + rank,
                },
                "coll_perf": performance,
            }
        )
