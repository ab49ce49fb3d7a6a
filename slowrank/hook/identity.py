"""Job, rank and GPU of this process, from the environment of its launcher."""

import re
from collections.abc import Mapping
from typing import Any, TypedDict

from slowrank.hook.misuse import misuse


class Identity(TypedDict, total=False):
    """Identity of this process; what is not given is read from the environment."""

    job_id: str
    attempt: int
    rank: int
    local_rank: int
    world_size: int
    gpu_index: int
    coords: Mapping[str, int]
    labels: Mapping[str, str]


# The listener's limit (telemetry.datagram): a number beyond it makes it refuse the whole datagram.
_LIMIT = 2**31


def identity_of(environ: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the datagram header of this process: given values, else those that torchrun, Slurm, Open MPI or
    Kubernetes set in the environment."""
    header: dict[str, Any] = {"v": 1, "job_id": _name(given.get("job_id") or _job_id(environ))}
    for field, names in _NUMBERS.items():
        header[field] = _whole(given.get(field), *(environ.get(name) for name in names))
    if header["attempt"] is None:
        header["attempt"] = _attempt(environ)
    if header["rank"] is None:
        misuse.note("rank unknown: neither given nor in RANK, SLURM_PROCID or OMPI_COMM_WORLD_RANK; using 0")
        header["rank"] = 0
    if header["gpu_index"] is None:
        header |= _visible_gpu(environ.get("CUDA_VISIBLE_DEVICES", ""), header["local_rank"])
    coords = given.get("coords") or _pairs(environ.get("SLOWRANK_COORDS", ""))
    labels = given.get("labels") or _pairs(environ.get("SLOWRANK_LABELS", ""))
    header["coords"] = {_name(k): n for k, v in _items(coords) if (n := _whole(v)) is not None}
    header["labels"] = {_name(k): _name(v) for k, v in _items(labels)}
    return header


# The first that is set is used. torchrun's come before Slurm's: where srun starts one torchrun a node,
# SLURM_PROCID counts nodes.
_NUMBERS = {
    "attempt": ("SLOWRANK_ATTEMPT",),
    "rank": ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "JOB_COMPLETION_INDEX"),
    "local_rank": ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"),
    "world_size": ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"),
    "gpu_index": ("SLOWRANK_GPU_INDEX",),
}


def _job_id(environ: Mapping[str, str]) -> str:
    # squeue shows the tasks of an array by both numbers, although each also has its own SLURM_JOB_ID.
    array = environ.get("SLURM_ARRAY_JOB_ID")
    run_id = environ.get("TORCHELASTIC_RUN_ID", "none")  # torchrun sets "none" where none was given
    master = environ.get("MASTER_ADDR", "").split(".")[0]
    candidates = (
        environ.get("SLOWRANK_JOB_ID"),
        f"{array}_{environ.get('SLURM_ARRAY_TASK_ID', '0')}" if array else None,
        environ.get("SLURM_JOB_ID"),
        run_id if run_id != "none" else None,
        # In the pods of a Kubeflow job MASTER_ADDR is <job>-master-0.
        master.removesuffix("-master-0") if master.endswith("-master-0") else None,
        f"{master}:{environ.get('MASTER_PORT', '')}" if master else None,
    )
    return next((c for c in candidates if c), "job")


def _attempt(environ: Mapping[str, str]) -> int:
    """Number restarts without repetition: a requeue by Slurm resets torchrun's count."""
    requeues = _whole(environ.get("SLURM_RESTART_COUNT")) or 0
    return 100 * requeues + (_whole(environ.get("TORCHELASTIC_RESTART_COUNT")) or 0)


def _visible_gpu(visible: str, local_rank: int | None) -> dict[str, int | str]:
    """Return the rank's GPU by index, or by UUID, which the exporter maps to an index.

    Neither for a part of a GPU (``MIG-…``) and for the entry -1, which means none.
    """
    devices = visible.split(",")
    if local_rank is None or local_rank >= len(devices):
        return {}
    device = devices[local_rank].strip()
    if re.fullmatch(r"\d{1,4}", device, re.ASCII):
        return {"gpu_index": int(device)}
    # CUDA accepts any unique prefix of a UUID.
    return {"gpu_uuid": device} if re.fullmatch(r"GPU-[0-9A-Fa-f-]{1,40}", device) else {}


def _pairs(text: str) -> list[tuple[str, str]]:
    return [(k.strip(), v.strip()) for k, found, v in (p.partition("=") for p in text.split(",")) if found]


def _items(mapping: Any) -> list[tuple[Any, Any]]:
    if isinstance(mapping, list):
        # More would only make every datagram of the process longer.
        return mapping[:16]
    if isinstance(mapping, Mapping):
        return list(mapping.items())[:16]
    misuse.note("coords and labels must be mappings")
    return []


def _whole(*candidates: Any) -> int | None:
    """Return the first candidate that is a whole number from 0 to 2^31 - 1, if any is."""
    for candidate in candidates:
        if candidate is None or candidate == "":
            continue
        text = str(candidate)
        # Without ASCII, digits of any script would match; their count bounds the work of int().
        if re.fullmatch(r"\d{1,10}", text, re.ASCII) and int(text) < _LIMIT:
            return int(text)
        misuse.note("ranks, sizes, attempts and coordinates must be whole numbers from 0, below 2^31")
    return None


def _name(text: Any) -> str:
    return re.sub(r"[^A-Za-z0-9._:/-]", "-", str(text)[:128]) or "-"
