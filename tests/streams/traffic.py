"""Telemetry of small clusters for the tests of the workers: jobs, nodes, and what is wrong with them."""

import time

import numpy as np

from slowrank.telemetry import JobSteps, NodeSample
from slowrank.telemetry.columns import pack
from slowrank.telemetry.schema import GPU_V1, HOST_V1, NIC_V1, STEP_V1

BOOT = "boot-1"


def job(*, job_id="job-1", ranks=16, steps=200, slow=None, seed=1, cluster="c", ends=None, step_seconds=1.0):
    """JobSteps of a synchronous job, one record per node and step; ``slow`` = (rank, from step, factor)."""
    rng = np.random.default_rng(seed)
    t = (ends or time.time() - 2) - steps * step_seconds * 1.15 * (slow[2] if slow else 1.0)
    for step in range(steps):
        compute = step_seconds * rng.lognormal(0, 0.005, ranks)
        if slow and step >= slow[1]:
            compute[slow[0]] *= slow[2]
        whole = float(compute.max()) + 0.1 * step_seconds
        t += whole
        for node in range(0, ranks, 8):
            rows = [
                {
                    "step": step,
                    "rank": r,
                    "local_rank": r - node,
                    "gpu_index": r - node,
                    "ts": t + r * 1e-4,
                    "step_seconds": whole,
                    "compute_seconds": float(compute[r]),
                    "wait_seconds": whole - float(compute[r]),
                }
                for r in range(node, min(node + 8, ranks))
            ]
            yield JobSteps(
                schema=1,
                cluster=cluster,
                job_id=job_id,
                node=f"{job_id}-n{node // 8}",
                boot_id=BOOT,
                seq=step,
                ts=rows[-1]["ts"],
                world_size=ranks,
                rows=pack(STEP_V1, rows),
            )


def nodes(*, count=4, seconds=200, low_clock=None, seed=2, cluster="c", ends=None):
    """NodeSamples of nodes with four GPUs at 1 Hz; ``low_clock`` = (node, gpu, from second)."""
    rng = np.random.default_rng(seed)
    start = (ends or time.time() - 2) - seconds
    for second in range(seconds):
        for node in range(count):
            gpus = [
                {
                    "gpu.utilization_ratio": 0.97,
                    "gpu.tensor_active_ratio": 0.4 + rng.normal(0, 0.01),
                    "gpu.clock.sm_hz": (
                        1.3e9
                        if low_clock and low_clock[:2] == (node, g) and second >= low_clock[2]
                        else 1.7e9
                    )
                    + rng.normal(0, 5e6),
                    "gpu.power_watts": 600 + rng.normal(0, 5),
                    "gpu.temp_celsius": 60 + rng.normal(0, 0.4),
                    "gpu.energy_millijoules_total": 600_000 * second,
                }
                for g in range(4)
            ]
            yield NodeSample(
                schema=1,
                cluster=cluster,
                node=f"node-{node}",
                boot_id=BOOT,
                seq=second,
                ts=start + second + node * 0.01,
                gpu_ids=("0", "1", "2", "3"),
                nic_ids=("mlx5_0/1",),
                gpu=pack(GPU_V1, gpus),
                nic=pack(NIC_V1, [{"nic.port.up": 1, "nic.port.tx_bytes_total": second * 10**9}]),
                host=pack(HOST_V1, [{"host.load1": 4.0}]),
            )
