"""What was injected, for whoever judges: kept apart from the records, never an input of a detector."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from simulator.faults import EFFECTS, Fault
from simulator.layout import ClusterSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """One injected cause. Times are Unix seconds; ``end`` is None for a fault that lasts.

    ``verdicts`` are the finding kinds that would be right; ``machine`` is False where naming a machine would
    be wrong, ``gating`` whether a job pays. ``gpu_index`` None means the whole node.
    """

    cause_id: str
    kind: str
    cluster: str
    node: str
    gpu_index: int | None
    ranks: tuple[int, ...]
    job_id: str | None
    onset: float
    end: float | None
    magnitude: float
    verdicts: tuple[str, ...]
    machine: bool
    gating: bool

    def to_json(self) -> dict[str, Any]:
        """Return the line of a ground-truth NDJSON file."""
        return {"kind": "truth", "fault": self.kind, **{k: v for k, v in asdict(self).items() if k != "kind"}}


def truths(spec: ClusterSpec, faults: Iterable[Fault]) -> tuple[Truth, ...]:
    """Return one truth per fault, in the order given."""
    return tuple(_truth(spec, i, fault) for i, fault in enumerate(faults))


def write(found: Iterable[Truth]) -> bytes:
    """Return the truths as NDJSON."""
    return b"".join(msgspec.json.encode(truth.to_json()) + b"\n" for truth in found)


def _truth(spec: ClusterSpec, number: int, fault: Fault) -> Truth:
    effect = EFFECTS[fault.kind]
    ends = fault.onset + fault.duration
    job_id, ranks = _ranks(spec, fault)
    return Truth(
        cause_id=f"cause-{number}",
        kind=fault.kind,
        cluster=spec.name,
        node=spec.node_name(fault.node),
        gpu_index=fault.gpu,
        ranks=ranks,
        job_id=job_id,
        onset=spec.start + fault.onset,
        end=None if ends == float("inf") else spec.start + ends,
        magnitude=fault.magnitude,
        verdicts=effect.verdicts,
        machine=effect.machine,
        gating=effect.gating,
    )


def _ranks(spec: ClusterSpec, fault: Fault) -> tuple[str | None, tuple[int, ...]]:
    for job in spec.jobs:
        first = (fault.node - job.first_node) * spec.gpus
        if 0 <= first < job.world:
            gpus = range(spec.gpus) if fault.gpu is None else (fault.gpu,)
            return job.job_id, tuple(first + gpu for gpu in gpus)
    return None, ()
