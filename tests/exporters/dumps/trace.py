"""Writes what PyTorch's flight recorder writes (format 2.9): a pickle without classes, or JSON."""

import json
import pickle


def entry(group, name, number, state="completed", size=1000, *, pairwise=False, where="/home/u/train.py"):
    """One operation, as FlightRecorderDetail.hpp writes it."""
    frames = [("/usr/lib/torch/distributed/distributed_c10d.py", 2696), (where, 141)]
    return {
        "frames": [{"name": "f", "filename": file, "line": line} for file, line in frames],
        "record_id": number,
        "pg_id": 0,
        "process_group": (group, "default_pg"),
        "collective_seq_id": 0 if pairwise else number,
        "p2p_seq_id": number if pairwise else 0,
        "op_id": number,
        "profiling_name": name,
        "time_created_ns": 1_795_160_000_000_000_000,
        "input_sizes": [[size]],
        "input_dtypes": ["Float"],
        "output_sizes": [[size]],
        "output_dtypes": ["Float"],
        "state": state,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": state == "completed",
        "timeout_ms": 600_000,
        "is_p2p": pairwise,
    }


def write(folder, rank, entries, groups, *, as_json=False):
    """Write the dump of a rank under the name that PyTorch gives it."""
    config = {name: {"name": name, "desc": "", "ranks": str(list(ranks))} for name, ranks in groups.items()}
    dump = {"version": "2.9", "pg_config": config, "pg_status": {}, "entries": entries}
    path = folder / f"nccl_trace_rank_{rank}"
    path.write_bytes(json.dumps(dump).encode() if as_json else pickle.dumps(dump, 2))
    return path
