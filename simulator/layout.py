"""What the cluster is made of: nodes, GPUs, rails, switches, racks, and which rank of a job sits where."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A change its owner wants and no machine is to blame for: all ranks together, also to faster.

    From ``onset`` (seconds from the start) on, reached over ``ramp_seconds``, compute takes ``factor`` times
    as long.
    """

    onset: float
    factor: float
    ramp_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """How the work of one job varies although everything is well.

    The defaults are the healthy noise of fixed-length jobs: ``drift_cv`` is the spread of the job's shared
    slow drift, ``noise_cv`` that of one rank's step around its peers, ``spread_cv`` the lasting difference
    between ranks. ``packing_cv`` is the spread that packed sequences of uneven length add to each rank and
    step; ``last_stage`` multiplies the compute of the last pipeline stage; ``gc_share`` is the share of steps
    in which one rank collects garbage; every ``spike_every``-th step takes ``spike_factor`` times as long for
    all; ``alternation`` is the relative difference between odd and even steps.
    """

    drift_cv: float = 0.011
    noise_cv: float = 0.0043
    spread_cv: float = 0.003
    packing_cv: float = 0.0
    last_stage: float = 1.06
    gc_share: float = 0.005
    spike_every: int = 0
    spike_factor: float = 3.0
    alternation: float = 0.0
    checkpoint_every: int = 0
    checkpoint_seconds: float = 8.0
    data_seconds: float = 0.006
    comm_seconds: float = 0.12
    planned: tuple[Planned, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One training job of dp x pp x tp ranks on the nodes from ``first_node`` on.

    Ranks count tensor-parallel first, then data-parallel, then pipeline stage; ``step_seconds`` is the step
    time aimed at when all is well, ``gradient_bytes`` what each rank sends per step.
    """

    dp: int
    pp: int = 1
    tp: int = 1
    job_id: str = "812345"
    first_node: int = 0
    step_seconds: float = 2.2
    micro_batches: int = 16
    first_step: int = 41_000
    tokens: float = 16_384.0
    gradient_bytes: float = 6e9
    workload: Workload = field(default_factory=Workload)

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.dp * self.pp * self.tp


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """The machines: ``nodes`` of ``gpus`` GPUs and ``nics`` NICs (one per rail), and the jobs on them."""

    nodes: int = 16
    gpus: int = 8
    nics: int = 8
    name: str = "sim"
    node_prefix: str = "sim-"
    gpu_model: str = "H100"
    nodes_per_switch: int = 32
    nodes_per_rack: int = 4
    jobs: tuple[JobSpec, ...] = ()
    send_seconds: float = 1.0
    start: float = 1_795_160_400.0

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.gpus < 1 or not 1 <= self.nics <= self.gpus:
            raise ValueError("a cluster needs at least one node, one GPU and 1 to `gpus` NICs a node")
        for job in self.jobs:
            if job.world % self.gpus or job.first_node + job.world // self.gpus > self.nodes:
                raise ValueError(
                    f"job {job.job_id}: {job.world} ranks do not fill whole nodes of {self.gpus} GPUs "
                    f"among the {self.nodes} nodes from node {job.first_node} on"
                )

    def node_name(self, node: int) -> str:
        """Return the name of node ``node`` (from 0)."""
        return f"{self.node_prefix}{node:0{max(4, len(str(self.nodes - 1)))}d}"

    def labels(self, node: int) -> dict[str, str]:
        """Return where the node stands and what it is."""
        return {
            "rack": f"rack-{node // self.nodes_per_rack:04d}",
            "switch": f"leaf-{node // self.nodes_per_switch:04d}",
            "gpu_model": self.gpu_model,
        }

    def nic_of(self, gpu: int) -> int:
        """Return the NIC, and with it the rail, that GPU ``gpu`` sends through."""
        return gpu * self.nics // self.gpus


def one_job(nodes: int, gpus: int) -> JobSpec:
    """Return a job over the whole cluster: tensor-parallel inside a node, data-parallel across nodes."""
    return JobSpec(dp=nodes, tp=gpus)


def coords(job: JobSpec) -> tuple[IntArray, IntArray, IntArray]:
    """Return (dp, pp, tp) of every rank in rank order, each [world]."""
    pp, dp, tp = np.unravel_index(np.arange(job.world), (job.pp, job.dp, job.tp))
    return dp, pp, tp
