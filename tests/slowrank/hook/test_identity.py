import pytest

from slowrank.hook.identity import identity_of
from slowrank.hook.misuse import misuse

CASES = {
    "torchrun": (
        {
            "RANK": "93",
            "LOCAL_RANK": "5",
            "WORLD_SIZE": "4096",
            "TORCHELASTIC_RUN_ID": "llama-405b",
            "TORCHELASTIC_RESTART_COUNT": "2",
            "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7",
        },
        {
            "job_id": "llama-405b",
            "rank": 93,
            "local_rank": 5,
            "world_size": 4096,
            "attempt": 2,
            "gpu_index": 5,
        },
    ),
    "slurm": (
        {
            "SLURM_JOB_ID": "812345",
            "SLURM_PROCID": "17",
            "SLURM_LOCALID": "1",
            "SLURM_NTASKS": "32",
            "SLURM_RESTART_COUNT": "1",
            "CUDA_VISIBLE_DEVICES": "2,3",
        },
        {"job_id": "812345", "rank": 17, "local_rank": 1, "world_size": 32, "attempt": 100, "gpu_index": 3},
    ),
    "slurm array": (
        {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3", "SLURM_PROCID": "0"},
        {"job_id": "7_3", "rank": 0},
    ),
    "our own names under a slurm array": (
        {
            "SLOWRANK_JOB_ID": "ablation",
            "SLOWRANK_ATTEMPT": "2",
            "SLURM_ARRAY_JOB_ID": "7",
            "SLURM_ARRAY_TASK_ID": "3",
            "SLURM_RESTART_COUNT": "1",
            "SLURM_PROCID": "0",
        },
        {"job_id": "ablation", "attempt": 2},
    ),
    "torchrun under slurm": (
        {"SLURM_JOB_ID": "5", "SLURM_PROCID": "1", "RANK": "12", "TORCHELASTIC_RUN_ID": "none"},
        {"job_id": "5", "rank": 12},
    ),
    "kubeflow": (
        {"MASTER_ADDR": "bert-master-0", "MASTER_PORT": "23456", "RANK": "1", "WORLD_SIZE": "4"},
        {"job_id": "bert", "rank": 1, "world_size": 4, "gpu_index": None},
    ),
    "indexed job": (
        {"MASTER_ADDR": "train-0.train.default.svc", "MASTER_PORT": "29500", "JOB_COMPLETION_INDEX": "6"},
        {"job_id": "train-0:29500", "rank": 6},
    ),
    "open mpi": (
        {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_SIZE": "3"},
        {"rank": 2, "local_rank": 0, "world_size": 3, "job_id": "job"},
    ),
    "gpus by uuid": (
        {"RANK": "0", "LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": "GPU-8f1c9a52"},
        {"gpu_index": None, "gpu_uuid": "GPU-8f1c9a52"},
    ),
    "coords and labels": (
        {"RANK": "0", "SLOWRANK_COORDS": "dp=1, pp=0,tp=x", "SLOWRANK_LABELS": "phase=train"},
        {"coords": {"dp": 1, "pp": 0}, "labels": {"phase": "train"}},
    ),
}


@pytest.mark.parametrize(("environ", "expected"), CASES.values(), ids=CASES)
def test_identity_comes_from_the_launcher(environ, expected):
    """Each launcher's environment names the same job, rank, size and GPU."""
    header = identity_of(environ, {})

    assert {field: header[field] for field in expected} == expected


def test_what_is_given_wins():
    """Arguments override the environment."""
    environ = {"RANK": "1", "SLOWRANK_JOB_ID": "from-env", "SLOWRANK_COORDS": "dp=9"}

    header = identity_of(environ, {"rank": 0, "job_id": "mine", "coords": {"dp": 2}, "attempt": 4})

    assert (header["rank"], header["job_id"], header["coords"], header["attempt"]) == (
        0,
        "mine",
        {"dp": 2},
        4,
    )


@pytest.mark.parametrize(
    "visible", ["GPU-8f1c9a52", "MIG-1b0f", "MIG-GPU-8f1c9a52/1/0", "-1", "NoDevFiles", " 0", ""]
)
def test_every_way_of_naming_a_device_is_legal(visible):
    """Whatever CUDA and Slurm write there is no misuse of the hook."""
    before = misuse.total

    identity_of({"RANK": "0", "LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": visible}, {})

    assert misuse.total == before


@pytest.mark.parametrize("visible", ["MIG-1b0f", "MIG-GPU-8f1c9a52/1/0", "-1", "NoDevFiles"])
def test_what_is_no_whole_gpu_is_not_named(visible):
    """A slice of a GPU, or none at all, is neither an index nor a UUID."""
    header = identity_of({"RANK": "0", "LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": visible}, {})

    assert header["gpu_index"] is None
    assert "gpu_uuid" not in header


def test_names_are_made_fit_for_the_wire():
    """A job name with spaces or other signs is not lost: what the codec refuses becomes a dash."""
    assert (
        identity_of({"RANK": "0", "SLOWRANK_JOB_ID": "my job é" + "x" * 300}, {})["job_id"][:9] == "my-job--x"
    )


@pytest.mark.parametrize("given", [2**31 - 1, str(2**31 - 1)])
def test_the_largest_number_of_the_wire_is_taken(given):
    """What the listener takes the hook sends, up to the last number below 2^31."""
    assert identity_of({"RANK": "0"}, {"coords": {"dp": given}})["coords"] == {"dp": 2**31 - 1}


@pytest.mark.parametrize("given", [2**31, -1, 10**10, "²", 1.5])
def test_what_the_wire_cannot_carry_is_left_out(given):
    """A number that the listener refuses, with all of its datagram, is not sent, and counts as misuse."""
    before = misuse.total

    assert identity_of({"RANK": "0"}, {"coords": {"dp": given}})["coords"] == {}
    assert misuse.total == before + 1
