"""Samples of a small cluster in which one node has weak signs of a fault, and a healthy region for it."""

import numpy as np

from detectors.node.gray_envelope import Envelope
from slowrank.telemetry import NodeSample, Record
from slowrank.telemetry.columns import pack
from slowrank.telemetry.schema import GPU_V1, HOST_V1
from streams.config.settings import Configs, Tuning

# The beginning of a minute.
T0 = 1_795_160_040.0

SICK = "node-3"
BUSY = ("host.cpu.utilization_ratio", "host.cpu.iowait_ratio", "host.load1", "host.run_queue")

# As if learnt: four features that have nothing to do with each other.
REGION = Envelope(BUSY, (0.0,) * 4, tuple(tuple(map(float, row)) for row in np.eye(4)), 60.0)

TUNING = Tuning(base=Configs(gray=REGION))


def samples(*, nodes=10, minutes=9, every=5.0, sick=(2, 6), seed=1, cluster="c", start=T0) -> list[Record]:
    """Samples in order of event time; the host of one node is busier than the others in some minutes."""
    rng = np.random.default_rng(seed)
    found: list[Record] = []
    for seq in range(int(minutes * 60 / every)):
        for node in range(nodes):
            ts = start + seq * every + 0.013 * node
            name = f"node-{node}"
            busy = 1.25 if name == SICK and sick[0] <= seq * every / 60 < sick[1] else 1.0
            found.append(sample(name, ts, busy * rng.normal(1.0, 0.01), seq=seq, cluster=cluster))
    return found


def sample(node, ts, busy=1.0, *, seq=0, gpus=2, cluster="c", **host) -> NodeSample:
    """One sample; ``host`` are readings of its own."""
    cards = [{"gpu.power_watts": 600.0 + gpu, "gpu.temp_celsius": 60.0 * busy} for gpu in range(gpus)]
    busy_host = {name: level * busy for name, level in zip(BUSY, (0.3, 0.02, 20.0, 18.0), strict=True)}
    return NodeSample(
        schema=1,
        cluster=cluster,
        node=node,
        boot_id="b",
        seq=seq,
        ts=ts,
        gpu_ids=tuple(str(gpu) for gpu in range(gpus)),
        gpu=pack(GPU_V1, cards),
        host=pack(HOST_V1, [busy_host | host]),
    )
