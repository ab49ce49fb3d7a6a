"""Samples of a node with network ports."""

from slowrank.telemetry import NodeSample
from slowrank.telemetry.columns import pack
from slowrank.telemetry.schema import SAMPLE_SCHEMAS


def port_sample(ts, ports, *, schema=2, gpus=({},), job="j") -> NodeSample:
    """One sample; ``ports`` and ``gpus`` are the readings of each of them."""
    layout = SAMPLE_SCHEMAS[schema]
    return NodeSample(
        schema=schema,
        cluster="c",
        node="n",
        boot_id="b",
        seq=int(ts),
        ts=float(ts),
        job_id=job,
        gpu_ids=tuple(str(i) for i in range(len(gpus))),
        nic_ids=tuple(f"mlx5_{i}/1" for i in range(len(ports))),
        row_bytes=layout.row_bytes,
        gpu=pack(layout.gpu, gpus),
        nic=pack(layout.nic, [{"nic.port.up": 1} | port for port in ports]),
    )
