"""Samples of a node, from the readings of its GPUs, ports and host."""

from slowrank.telemetry import NodeSample
from slowrank.telemetry.columns import pack
from slowrank.telemetry.schema import SAMPLE_SCHEMAS

HOST = {"host.load1": 4.0}


def node_sample(
    ts,
    *,
    gpus=(),
    gpu_ids=None,
    ports=(),
    host=None,
    schema=1,
    node="n",
    job=None,
    seq=None,
    boot="b",
    labels=None,
) -> NodeSample:
    """One sample; ``gpus`` and ``ports`` are the readings of each of them, a port is up unless they say."""
    layout = SAMPLE_SCHEMAS[schema]
    return NodeSample(
        schema=schema,
        cluster="c",
        node=node,
        boot_id=boot,
        seq=int(ts) if seq is None else seq,
        ts=float(ts),
        job_id=job,
        labels=labels or {},
        gpu_ids=tuple(map(str, range(len(gpus)) if gpu_ids is None else gpu_ids)),
        nic_ids=tuple(f"mlx5_{i}/1" for i in range(len(ports))),
        row_bytes=layout.row_bytes,
        gpu=pack(layout.gpu, list(gpus)),
        nic=pack(layout.nic, [{"nic.port.up": 1} | port for port in ports]),
        host=b"" if host is None else pack(layout.host, [host]),
    )
