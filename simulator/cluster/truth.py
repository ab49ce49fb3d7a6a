"""Ground truth of the injected faults, separate from the records and never an input of a detector."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from simulator.cluster.layout import ClusterSpec, JobSpec
from simulator.faults.fault import Fault
from simulator.faults.hardware import nodes_of
from simulator.faults.kinds import CauseClass, Scope

# Excess from which a last stage counts as long. Chosen: most tuned pipelines are below (3 to 16 % measured).
LONG_STAGE = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """One injected cause. Times are Unix seconds; ``end`` is None for a fault that lasts.

    ``node`` and ``gpu_index`` are its place (``gpu_index`` None: the whole node; ``nic`` None: not a port),
    ``nodes`` all nodes it reaches (``scope``), ``ranks`` those of job ``job_id`` at its place. ``verdicts``
    are the right kinds of findings, ``hypotheses`` the right causes, ``cause`` its class; ``machine`` is
    False where naming a machine would be wrong, ``gating`` whether it slows or stops a job. ``planned`` is
    True for healthy behaviour, for which no finding is right as well.
    """

    cause_id: str
    kind: str
    cause: CauseClass
    cluster: str
    scope: Scope
    node: str
    nodes: tuple[str, ...]
    gpu_index: int | None
    nic: str | None
    ranks: tuple[int, ...]
    job_id: str | None
    onset: float
    end: float | None
    magnitude: float
    verdicts: tuple[str, ...]
    hypotheses: tuple[str, ...]
    machine: bool
    gating: bool
    planned: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the line of a ground-truth NDJSON file."""
        return {"kind": "truth", "fault": self.kind, **{k: v for k, v in asdict(self).items() if k != "kind"}}


def truths(spec: ClusterSpec, faults: Iterable[Fault]) -> tuple[Truth, ...]:
    """Return one truth per fault, in the order given."""
    return tuple(_truth(spec, i, fault) for i, fault in enumerate(faults))


def planned_truths(spec: ClusterSpec) -> tuple[Truth, ...]:
    """Return the healthy behaviour of jobs that resembles a fault, job by job."""
    return tuple(
        _planned(spec, job, kind, cause, onset)
        for job in spec.jobs
        for kind, cause, onset in _confounders(job)
    )


def write(found: Iterable[Truth]) -> bytes:
    """Return the truths as NDJSON."""
    return b"".join(msgspec.json.encode(truth.to_json()) + b"\n" for truth in found)


def _truth(spec: ClusterSpec, number: int, fault: Fault) -> Truth:
    row = fault.row
    job_id, ranks = _ranks(spec, fault)
    gpu = fault.gpu if row.scope in ("gpu", "nic") else None
    port = f"mlx5_{spec.nic_of(fault.gpu or 0)}/1" if row.scope in ("nic", "rail") else None
    return Truth(
        cause_id=f"cause-{number}",
        kind=fault.kind,
        cause=row.cause,
        cluster=spec.name,
        scope=row.scope,
        node=spec.node_name(fault.node),
        nodes=tuple(spec.node_name(node) for node in nodes_of(spec, fault)),
        gpu_index=gpu,
        nic=port,
        ranks=ranks,
        job_id=job_id,
        onset=spec.start + fault.onset,
        end=None if fault.end == float("inf") else spec.start + fault.end,
        magnitude=fault.magnitude,
        verdicts=row.verdicts,
        hypotheses=row.hypotheses,
        machine=row.machine,
        gating=row.gating and job_id is not None,
    )


def _ranks(spec: ClusterSpec, fault: Fault) -> tuple[str | None, tuple[int, ...]]:
    """Return the job and its ranks on the nodes the fault reaches: one rank if it is one GPU's."""
    job = spec.job_at(fault.node, fault.onset)
    if job is None:
        return None, ()
    mine, gpus = spec.nodes_of_job(job), list(range(spec.gpus))
    if fault.gpu is not None and fault.row.scope in ("gpu", "nic"):
        gpus = [fault.gpu]
    elif fault.row.scope == "nic":
        gpus = [gpu for gpu in gpus if spec.nic_of(gpu) == 0]
    return job.job_id, tuple(
        (node - mine.start) * spec.gpus + gpu
        for node in nodes_of(spec, fault)
        if node in mine
        for gpu in gpus
    )


def _confounders(job: JobSpec) -> Iterator[tuple[str, CauseClass, float]]:
    load, begins = job.workload, max(0.0, job.begins)
    if job.pp > 1 and load.last_stage >= LONG_STAGE:
        yield "long_stage", "stage", begins
    if load.packing_cv:
        yield "packing", "workload", begins
    for change in load.planned:
        yield "schedule", "planned", change.onset


def _planned(spec: ClusterSpec, job: JobSpec, kind: str, cause: CauseClass, onset: float) -> Truth:
    nodes = tuple(spec.node_name(node) for node in spec.nodes_of_job(job))
    return Truth(
        cause_id=f"{job.job_id}-{kind}-{onset:g}",
        kind=kind,
        cause=cause,
        cluster=spec.name,
        scope="job",
        node=nodes[0],
        nodes=nodes,
        gpu_index=None,
        nic=None,
        ranks=(),
        job_id=job.job_id,
        onset=spec.start + onset,
        end=None if job.ends == float("inf") else spec.start + job.ends,
        magnitude=1.0,
        verdicts=("straggler.job_wide",),
        hypotheses=(f"imbalance.{cause}",) if cause != "planned" else ("planned",),
        machine=False,
        gating=False,
        planned=True,
    )
