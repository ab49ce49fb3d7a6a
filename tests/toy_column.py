"""Runs the whole program with one more row in the column schema, and a toy collector that fills it.

Started by ``test_new_column`` in a process of its own, because every list of columns derives from the schema
when it is imported. Prints what each stage made of the column, as JSON.
"""

import json
import sys
import types
from pathlib import Path

ROW = '    _gauge("gpu.toy_ratio", "1", "mean", since={next}),\n'
SCHEMA = Path(__file__).resolve().parents[1] / "slowrank" / "telemetry" / "schema.py"

source = SCHEMA.read_text()
module = types.ModuleType("slowrank.telemetry.schema")
sys.modules[module.__name__] = module
exec(compile(source, SCHEMA, "exec"), module.__dict__)
row = ROW.format(next=module.CURRENT_SAMPLE_SCHEMA + 1)
exec(compile(source.replace("GPU_COLUMNS = (\n", "GPU_COLUMNS = (\n" + row), SCHEMA, "exec"), module.__dict__)

# Below the replaced schema, which these modules read as they are imported: hence each E402.
from exporters.collector import Instant  # noqa: E402
from exporters.exporter import Exporter, NodeIdentity  # noqa: E402
from exporters.spool import SpoolStats  # noqa: E402
from simulator.cluster.cluster import Cluster  # noqa: E402
from simulator.cluster.layout import ClusterSpec  # noqa: E402
from slowrank.telemetry import NodeSample, decode_sample, encode  # noqa: E402
from slowrank.telemetry.names import METRICS  # noqa: E402
from slowrank.telemetry.rows import json_rows  # noqa: E402
from slowrank.telemetry.schema import GPU_V1  # noqa: E402
from store.telemetry.buckets import ROLLED, SampleRollup  # noqa: E402
from streams.node import registry  # noqa: E402
from streams.node.detectors.read_times import ReadTimes  # noqa: E402
from streams.pipeline import local_pipeline  # noqa: E402
from streams.rollup.rollup import RollUp  # noqa: E402
from tests.exporters.toy_collector import ToyCollector  # noqa: E402
from tests.roll_ups import unpacked  # noqa: E402

seen: set[float] = set()


class Seen(ReadTimes):
    """A node detector that keeps what it reads."""

    def update(self, batch, increases):
        seen.update(batch.gpu["gpu.toy_ratio"].ravel().tolist())
        return ()


registry.NODE_DETECTORS = (*registry.NODE_DETECTORS, Seen)
exporter = Exporter(NodeIdentity("c", "n", "b"), [ToyCollector({"gpu.toy_ratio": 0.25})])
pipeline, rollup, closed, sample = local_pipeline(), RollUp(), [], None
for t in range(1_795_160_000, 1_795_160_040):
    records = exporter.tick(Instant(wall=float(t), monotonic=float(t)), SpoolStats(0, 0))
    sample = decode_sample(encode(next(r for r in records if isinstance(r, NodeSample))))
    list(pipeline.process(sample))
    closed += rollup.add(sample)
assert sample is not None
# An old record, which lacks the column.
old = NodeSample(
    schema=1, cluster="c", node="old", boot_id="b", seq=0, ts=sample.ts,
    gpu_ids=("0",), gpu=bytes(GPU_V1.row_size),
)  # fmt: skip
rollup.add(old)
rows = unpacked(closed + rollup.flush())
(simulated,) = [
    r for r in Cluster(ClusterSpec(nodes=1, gpus=1, nics=1), seed=1).run(1.0) if isinstance(r, NodeSample)
]
place = [r.column for r in ROLLED["gpu"]].index("toy_ratio_mean")
found = {
    "schema": (sample.schema, simulated.schema),
    "json": [row["value"] for row in json_rows.rows(sample) if row["metric"] == "gpu.toy_ratio"],
    "name": "gpu.toy_ratio" in METRICS,
    "detector": sorted(seen),
    "rollup": sorted({r.values[place] for r in rows if isinstance(r, SampleRollup) and r.node == "n"
                      and r.block == "gpu"}),
    "old": [repr(r.values[place]) for r in rows if isinstance(r, SampleRollup) and r.node == "old"],
}  # fmt: skip
sys.stdout.write(json.dumps(found))
