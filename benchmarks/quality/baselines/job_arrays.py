"""Conversion of a stream of records to the arrays that the baselines work on."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slowrank.telemetry import JobSteps, NodeSample, Record
from slowrank.telemetry.schema import SAMPLE_SCHEMAS, STEP_SCHEMAS
from streams.columns import as_float, columns

Floats = npt.NDArray[np.float64]

# Metrics of a node for baselines on samples: of its worst GPU, because a mean over eight would hide one.
WORST_OF_NODE = {
    "gpu.clock.sm_hz": np.min,
    "gpu.power_watts": np.min,
    "gpu.temp_celsius": np.max,
    "gpu.utilization_ratio": np.min,
    "gpu.tensor_active_ratio": np.min,
    "gpu.pcie.link_width": np.min,
}


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of one job: ``seconds`` of compute [steps, ranks], ``ts`` [steps], the place of each rank."""

    job_id: str
    seconds: Floats
    ts: Floats
    places: list[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples of the nodes of one job: ``values`` [ticks, nodes, metrics] of each node's worst GPU.

    The last metric is the rate sent through all NICs. ``ts`` [ticks] is when each tick was complete.
    """

    job_id: str
    values: Floats
    ts: Floats
    nodes: list[str]


class Recorder:
    """Collect the values that baselines need; ``tick_seconds`` is the period of a node's samples."""

    def __init__(self, tick_seconds: float) -> None:
        self._tick_seconds = tick_seconds
        self._rows: dict[str, list[dict[str, npt.NDArray[np.generic]]]] = defaultdict(list)
        self._row_nodes: dict[str, list[str]] = defaultdict(list)
        self._samples: dict[str, dict[tuple[int, str], tuple[float, Floats]]] = defaultdict(dict)

    def add(self, record: Record) -> None:
        """Add one record of any type."""
        if isinstance(record, JobSteps):
            self._rows[record.job_id].append(dict(columns(STEP_SCHEMAS[record.schema].rows, record.rows)))
            self._row_nodes[record.job_id].append(record.node)
        elif isinstance(record, NodeSample) and record.job_id is not None:
            tick = int(record.ts // self._tick_seconds)
            self._samples[record.job_id][tick, record.node] = (record.ts, _readings(record))

    def steps(self) -> list[Steps]:
        """Return the steps of every job, by job id."""
        return [self._steps(job) for job in sorted(self._rows)]

    def samples(self) -> list[Samples]:
        """Return the samples of every job, by job id."""
        return [_samples(job, self._samples[job]) for job in sorted(self._samples)]

    def _steps(self, job: str) -> Steps:
        names = ("step", "rank", "gpu_index", "compute_seconds", "ts")
        step, rank, gpu, seconds, ts = (
            np.concatenate([as_float(rows[name]) for rows in self._rows[job]]) for name in names
        )
        node = np.repeat(self._row_nodes[job], [len(rows["rank"]) for rows in self._rows[job]])
        numbers, place = np.unique(step, return_inverse=True)
        ranks, member = np.unique(rank, return_inverse=True)
        table, ends = np.full((len(numbers), len(ranks)), np.nan), np.zeros(len(numbers))
        table[place, member] = seconds
        np.maximum.at(ends, place, ts)
        first = [int(np.flatnonzero(member == r)[0]) for r in range(len(ranks))]
        return Steps(job, table, ends, [(str(node[i]), int(gpu[i])) for i in first])


def _readings(record: NodeSample) -> Floats:
    schema = SAMPLE_SCHEMAS[record.schema]
    gpu, nic = columns(schema.gpu, record.gpu), columns(schema.nic, record.nic)
    sent = float(as_float(nic["nic.port.tx_bytes_total"]).sum()) if record.nic_ids else np.nan
    worst = [
        float(pick(as_float(gpu[name]))) if record.gpu_ids else np.nan for name, pick in WORST_OF_NODE.items()
    ]
    return np.array([*worst, sent])


def _samples(job: str, held: dict[tuple[int, str], tuple[float, Floats]]) -> Samples:
    nodes = sorted({node for _, node in held})
    first, last = min(tick for tick, _ in held), max(tick for tick, _ in held)
    values = np.full((last - first + 1, len(nodes), len(WORST_OF_NODE) + 1), np.nan)
    ts = np.zeros(len(values))
    for (tick, node), (at, readings) in held.items():
        values[tick - first, nodes.index(node)] = readings
        ts[tick - first] = max(ts[tick - first], at)
    values[1:, :, -1] = np.diff(values[:, :, -1], axis=0)
    values[0, :, -1] = np.nan
    return Samples(job, values, ts, nodes)
