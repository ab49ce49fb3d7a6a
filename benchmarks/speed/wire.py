"""Goal P10: decoding a node sample to numpy arrays, against orjson with named fields, in the same run.

All sides end in the same arrays, which the run asserts. "decode" compares like with like (neither side checks
a limit); "checked" is what a worker runs: ``decode_sample`` with every limit of the codec, against JSON that
still checks nothing. CPU time of the thread, medians of interleaved rounds.
"""

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import orjson

from slowrank.telemetry import JobSteps, NodeSample, decode_sample, decode_steps, encode
from slowrank.telemetry.columns import pack
from slowrank.telemetry.compact import CompactSample, CompactSteps
from slowrank.telemetry.schema import SAMPLE_SCHEMAS, STEP_SCHEMAS, Block
from streams.columns import Array, as_float, views

Row = dict[str, float | int | None]
Blocks = tuple[list[Array], ...]

ROUNDS, CALLS = 41, 500
NOW = 1_795_160_472.0
GOAL_SPEED, GOAL_SIZE = 15.0, 0.25


@dataclass(frozen=True, slots=True)
class Case:
    """One record in both forms, and the three ways from bytes to arrays."""

    name: str
    wire: bytes
    text: bytes
    decode: Callable[[], Blocks]
    checked: Callable[[], Blocks]
    json: Callable[[], Blocks]


def main(argv: list[str]) -> int:
    """Print both records' figures; return 1 when one of them misses the goal. Takes no options."""
    if argv:
        print(f"wire takes no options, got {argv[0]}", file=sys.stderr)
        return 2
    rng = np.random.default_rng(7)
    print("| record | values | ours B | JSON B | size | JSON us | decode us | faster | checked us | faster |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    figures = [_report(case(rng)) for case in (_samples, _steps)]
    return 0 if all(size <= GOAL_SIZE and speed >= GOAL_SPEED for size, speed in figures) else 1


def _report(case: Case) -> tuple[float, float]:
    for decoder in (case.decode, case.checked):
        for left, right in zip(chain(*decoder()), chain(*case.json()), strict=True):
            stored = right.astype(np.float32) if left.dtype == np.float32 else right
            np.testing.assert_array_equal(as_float(left), stored)
    values = sum(a.size for a in chain(*case.decode()))
    json, decode, checked = _medians(case.json, case.decode, case.checked)
    size = len(case.wire) / len(case.text)
    print(
        f"| {case.name} | {values} | {len(case.wire)} | {len(case.text)} | {size:.1%} | {json:.1f} "
        f"| {decode:.2f} | {json / decode:.1f}x | {checked:.2f} | {json / checked:.1f}x |"
    )
    return size, json / decode


def _medians(*calls: Callable[[], object]) -> list[float]:
    """Return microseconds of CPU per call, the median over interleaved rounds."""
    rounds: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS):
        for call, taken in zip(calls, rounds, strict=True):
            start = time.thread_time_ns()
            for _ in range(CALLS):
                call()
            taken.append((time.thread_time_ns() - start) / CALLS / 1e3)
    return [statistics.median(taken) for taken in rounds]


def _samples(rng: np.random.Generator) -> Case:
    schema = SAMPLE_SCHEMAS[1]
    counts = {"gpu": 8, "nic": 9, "host": 1}
    blocks = {"gpu": schema.gpu, "nic": schema.nic, "host": schema.host}
    named = {name: _values(rng, block, counts[name]) for name, block in blocks.items()}
    record = NodeSample(
        schema=1,
        cluster="prod-a",
        node="gpu-0011",
        boot_id="5f9f1f0a-7c1e-4a55-9d0e-0d8d1f0e7a10",
        seq=812_345,
        ts=NOW,
        job_id="812345",
        labels={"rack": "r07", "gpu_model": "H100"},
        gpu_ids=tuple(str(i) for i in range(8)),
        nic_ids=tuple(f"mlx5_{i}/1" for i in range(9)),
        gpu=pack(schema.gpu, named["gpu"]),
        nic=pack(schema.nic, named["nic"]),
        host=pack(schema.host, named["host"]),
    )
    envelope = msgspec.to_builtins(msgspec.structs.replace(record, gpu=b"", nic=b"", host=b""))
    wire, text = encode(record), orjson.dumps(envelope | named)

    bare = msgspec.msgpack.Decoder(CompactSample)

    def arrays(got: NodeSample) -> Blocks:
        return views(schema.gpu, got.gpu), views(schema.nic, got.nic), views(schema.host, got.host)

    def json() -> Blocks:
        got = orjson.loads(text)
        return tuple(_named_arrays(block, got[name]) for name, block in blocks.items())

    return Case(
        "node-samples, 8 GPUs, 9 NICs",
        wire,
        text,
        decode=lambda: arrays(bare.decode(wire).record()),
        checked=lambda: arrays(decode_sample(wire, now=NOW)),
        json=json,
    )


def _steps(rng: np.random.Generator) -> Case:
    block = STEP_SCHEMAS[1].rows
    rows = [_step_row(rng, step, rank) for step in range(41_233, 41_237) for rank in range(8)]
    packed = pack(block, rows)
    record = JobSteps(
        schema=1,
        cluster="prod-a",
        job_id="812345",
        node="gpu-0011",
        boot_id="5f9f",
        seq=9,
        ts=NOW,
        rows=packed,
    )
    envelope = msgspec.to_builtins(msgspec.structs.replace(record, rows=b""))
    named = [dict.fromkeys(block.names) | row for row in rows]
    wire, text = encode(record), orjson.dumps(envelope | {"rows": named})

    bare = msgspec.msgpack.Decoder(CompactSteps)

    def json() -> Blocks:
        return (_named_arrays(block, orjson.loads(text)["rows"]),)

    return Case(
        "job-steps, 8 ranks x 4 steps",
        wire,
        text,
        decode=lambda: (views(block, bare.decode(wire).record().rows),),
        checked=lambda: (views(block, decode_steps(wire, now=NOW).rows),),
        json=json,
    )


def _step_row(rng: np.random.Generator, step: int, rank: int) -> Row:
    compute = round(1.9 + 0.02 * rng.random(), 6)
    row: Row = {
        "step": step,
        "rank": rank,
        "local_rank": rank,
        "gpu_index": rank,
        "dp": 5,
        "pp": 1,
        "tp": rank,
    }
    row |= {"ts": NOW, "step_seconds": 2.214173, "compute_seconds": compute, "comm_seconds": 0.061402}
    return row | {"wait_seconds": round(2.15 - compute, 6), "tokens": 16384.0, "loss": 2.317}


def _values(rng: np.random.Generator, block: Block, count: int) -> list[Row]:
    """Readings as they look: five significant digits in a gauge, counters of a few days."""
    ranges = {"Hz": 2e9, "W": 700.0, "By": 8e10, "Cel": 90.0, "By/s": 1e10}
    rows: list[Row] = []
    for _ in range(count):
        gauges: Row = {c.name: float(f"{ranges.get(c.unit, 1.0) * rng.random():.5g}") for c in block.columns}
        counters: Row = {c.name: int(rng.integers(0, 10**12)) for c in block.columns if c.dtype == "<i8"}
        rows.append(gauges | counters)
    return rows


def _named_arrays(block: Block, rows: list[dict[str, Any]]) -> list[Array]:
    """The quickest plain way from named rows to one float array [columns, n] per dtype run."""
    found: list[Array] = []
    names = list(block.names)
    dtypes = [c.dtype for c in block.columns]
    while names:
        size = next((i for i, d in enumerate(dtypes) if d != dtypes[0]), len(dtypes))
        found.append(np.array([[row[n] for row in rows] for n in names[:size]], dtype=np.float64))
        names, dtypes = names[size:], dtypes[size:]
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
