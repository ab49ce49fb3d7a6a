"""Layout of the cluster: nodes, GPUs, rails, switches, racks, and the placement of each job's ranks."""

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

# The columns of one GPU take some 300 bytes, and a tick a dozen arrays of them.
MAX_GPUS = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A planned change of all ranks' compute, to slower or faster, without a fault.

    From ``onset`` (seconds since the start) on, over ``ramp_seconds``, compute takes ``factor`` times as
    long.
    """

    onset: float
    factor: float
    ramp_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Variation of the work of a healthy job.

    The defaults are the noise of fixed-length jobs: ``drift_cv`` is the spread of the job's shared
    slow drift, ``jitter_cv`` that of its steps around it, ``noise_cv`` that of one rank's step around its
    peers, ``spread_cv`` the lasting difference between ranks, ``wander_cv`` what neighbours on shared
    hardware add for some steps. ``packing_cv`` is the spread that packed sequences of uneven length add to
    each rank and step; ``last_stage`` multiplies the compute of the last pipeline stage; ``gc_share`` is the
    share of steps in which one rank collects garbage. Every k-th step differs for all:
    ``spike_every`` by ``spike_factor`` (data shards), ``gc_every`` by ``gc_factor`` (planned collection),
    ``alternate_every`` by ``alternation``; ``recompiles`` are single steps that take ``spike_factor``
    times as long. ``diurnal`` is the share by which the heat of the day slows compute. ``announced``:
    pauses and changes are sent as events.
    """

    # Set so that healthy jobs show what was measured on real ones (tests/simulator/test_calibration.py).
    drift_cv: float = 0.011
    jitter_cv: float = 0.0
    noise_cv: float = 0.0043
    spread_cv: float = 0.003
    wander_cv: float = 0.0
    packing_cv: float = 0.0
    last_stage: float = 1.06
    gc_share: float = 0.005
    gc_every: int = 0
    # Measured on a job of 128 ranks that collects every 500 steps.
    gc_factor: float = 1.126
    spike_every: int = 0
    spike_factor: float = 3.0
    recompiles: tuple[int, ...] = ()
    alternation: float = 0.0
    alternate_every: int = 2
    checkpoint_every: int = 0
    checkpoint_seconds: float = 8.0
    eval_every: int = 0
    eval_seconds: float = 60.0
    data_seconds: float = 0.006
    comm_seconds: float = 0.12
    diurnal: float = 0.0
    planned: tuple[Planned, ...] = ()
    announced: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One training job of dp x pp x tp ranks on the nodes from ``first_node`` on.

    Ranks count tensor-parallel first, then data-parallel, then pipeline stage; ``step_seconds`` is the step
    time without faults, ``gradient_bytes`` what each rank sends per step. Each of ``ep`` consecutive
    data-parallel replicas has other experts. The first ``rollout_dp`` replicas of a job of reinforcement
    learning generate for ``rollout_seconds`` while the others wait, then wait while the others train. The job
    runs from ``begins`` to ``ends`` (seconds from the start), as its ``attempt``-th attempt; one that broke
    starts anew ``restart_seconds`` after the repair, and ranks that wait for a dead one give up after
    ``timeout_seconds``.
    """

    dp: int
    pp: int = 1
    tp: int = 1
    ep: int = 1
    job_id: str = "812345"
    first_node: int = 0
    step_seconds: float = 2.2
    micro_batches: int = 16
    first_step: int = 41_000
    tokens: float = 16_384.0
    gradient_bytes: float = 6e9
    rollout_dp: int = 0
    rollout_seconds: float = 120.0
    begins: float = 0.0
    ends: float = math.inf
    attempt: int = 0
    restart_seconds: float = 120.0
    # Peers of a dead rank were seen to give up after ten minutes.
    timeout_seconds: float = 600.0
    workload: Workload = field(default_factory=Workload)

    def __post_init__(self) -> None:
        if self.dp % self.ep or not 0 <= self.rollout_dp < self.dp or (self.rollout_dp and self.pp > 1):
            raise ValueError(
                f"job {self.job_id}: ep must divide dp, and replicas that roll out leave some to train, "
                "without pipeline stages"
            )
        if not self.workload.comm_seconds + self.workload.data_seconds < self.step_seconds < math.inf:
            raise ValueError(f"job {self.job_id}: its step must be longer than transfer and data take")
        if not 0 <= self.begins < self.ends:
            raise ValueError(f"job {self.job_id}: it must begin before it ends")

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.dp * self.pp * self.tp


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """The machines: ``nodes`` of ``gpus`` GPUs and ``nics`` NICs (one per rail), and the jobs on them.

    Exporters send every ``send_seconds``; ``lost_share`` of what they send never arrives.
    """

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
    lost_share: float = 0.0
    start: float = 1_795_160_400.0

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.gpus < 1 or not 1 <= self.nics <= self.gpus:
            raise ValueError("a cluster needs at least one node, one GPU and 1 to `gpus` NICs a node")
        if not 0 < self.send_seconds < math.inf or not 0 <= self.lost_share < 1:
            raise ValueError("a cluster needs a time between samples and a share of lost records under 1")
        if self.nodes * self.gpus > MAX_GPUS:
            raise ValueError(
                f"{self.nodes} nodes of {self.gpus} GPUs are more than the {MAX_GPUS} GPUs that can be held"
            )
        for i, job in enumerate(self.jobs):
            self._check(job, self.jobs[:i])

    def _check(self, job: JobSpec, others: "tuple[JobSpec, ...]") -> None:
        if job.first_node < 0 or job.world % self.gpus or self.nodes_of_job(job).stop > self.nodes:
            raise ValueError(
                f"job {job.job_id}: {job.world} ranks do not fill whole nodes of {self.gpus} GPUs "
                f"among the {self.nodes} nodes from node {job.first_node} on"
            )
        if job.rollout_dp * job.tp % self.gpus:
            raise ValueError(f"job {job.job_id}: replicas that roll out must fill whole nodes")
        mine = self.nodes_of_job(job)
        for other in others:
            theirs = self.nodes_of_job(other)
            beside = mine.start >= theirs.stop or theirs.start >= mine.stop
            if not beside and job.begins < other.ends and other.begins < job.ends:
                raise ValueError(f"jobs {other.job_id} and {job.job_id} share nodes at the same time")

    def nodes_of_job(self, job: JobSpec) -> range:
        """Return the nodes the job runs on."""
        return range(job.first_node, job.first_node + job.world // self.gpus)

    def job_at(self, node: int, t: float) -> JobSpec | None:
        """Return the job on ``node`` at ``t`` seconds from the start, if there is one."""
        for job in self.jobs:
            if node in self.nodes_of_job(job) and job.begins <= t < job.ends:
                return job
        return None

    def node_name(self, node: int) -> str:
        """Return the name of node ``node`` (from 0)."""
        return f"{self.node_prefix}{node:0{max(4, len(str(self.nodes - 1)))}d}"

    def labels(self, node: int) -> dict[str, str]:
        """Return the labels of a node: rack, switch and GPU model."""
        return {
            "rack": f"rack-{node // self.nodes_per_rack:04d}",
            "switch": f"leaf-{node // self.nodes_per_switch:04d}",
            "gpu_model": self.gpu_model,
        }

    def nic_of(self, gpu: int) -> int:
        """Return the NIC, which is also the rail, that GPU ``gpu`` sends through."""
        return gpu * self.nics // self.gpus


def one_job(nodes: int, gpus: int) -> JobSpec:
    """Return a job over the whole cluster: tensor-parallel inside a node, data-parallel across nodes."""
    return JobSpec(dp=nodes, tp=gpus)


def coords(job: JobSpec) -> tuple[IntArray, IntArray, IntArray]:
    """Return (dp, pp, tp) of every rank in rank order, each [world]."""
    pp, dp, tp = np.unravel_index(np.arange(job.world), (job.pp, job.dp, job.tp))
    return dp, pp, tp
