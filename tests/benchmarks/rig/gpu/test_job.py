import pytest
from servers.process import Process

from benchmarks.rig.gpu.host import NotStarted
from benchmarks.rig.gpu.job import (
    Job,
    NoGpu,
    Plan,
    Step,
    Work,
    _place,
    between,
    check,
    compute_median,
    steps_in,
    work_in,
)

LOG = """[W socket.cpp] a warning of PyTorch
{"products": 32, "size": 1000, "product_seconds": 0.001}
{"step": 0, "at": 100.0, "compute_seconds": 0.2}
{"step": 1, "at": 100.5, "compute_seconds": 0.4}
{"step": 2, "at": 10"""


@pytest.fixture
def interpreter(tmp_path):
    """An executable that stands for a Python: it writes one line and ends."""

    def made(line, status=0):
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\necho '{line}' >&{2 if status else 1}\nexit {status}\n")
        path.chmod(0o755)
        return str(path)

    return made


def probed(devices, cuda='"12.8"'):
    return f'{{"torch": "2.11", "cuda": {cuda}, "distributed": true, "devices": {devices}, "name": null}}'


def test_steps_are_read_from_a_log_that_is_being_written():
    """Without warnings between, and without the half of a line at its end."""
    assert steps_in(LOG) == [Step(0, 100.0, 0.2), Step(1, 100.5, 0.4)]
    assert work_in(LOG) == Work(32, 1000, 0.001)


def test_a_product_has_two_operations_for_each_of_its_multiplications():
    """A multiplication and an addition."""
    assert work_in(LOG).operations == 32 * 2e9


def test_steps_are_counted_by_when_they_ended():
    """After the beginning of the span and up to its end."""
    steps = steps_in(LOG)
    assert between(steps, 100.0, 100.5) == steps[1:]
    assert compute_median(steps) == pytest.approx(0.3)
    assert compute_median([]) is None


@pytest.mark.parametrize(
    ("visible", "rank", "options", "device"),
    [
        (None, 1, ["--gpu", "1"], "1"),
        (None, 2, ["--gpu", "0"], "0"),
        ("5,7", 3, ["--gpu", "7"], "7"),
        ("GPU-3f1c", 0, [], "GPU-3f1c"),
    ],
)
def test_ranks_take_gpus_in_turn(monkeypatch, visible, rank, options, device):
    """Those that CUDA may use, and the hook has NVML's index where it is known."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found, environment = _place(Plan("python", 4, 2, 8, 2.0), rank)
    assert (found, environment["CUDA_VISIBLE_DEVICES"]) == (options, device)
    assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_ranks_on_one_gpu_share_its_time():
    """A step of all of them takes as long as with a GPU each."""
    assert Plan("python", 4, 1, 8, 2.0).sharing == 4
    assert Plan("python", 4, 4, 8, 2.0).sharing == 1


def test_a_gpu_is_found_by_pytorch(interpreter):
    """Of the interpreter that the ranks run in."""
    assert check(interpreter(probed(devices=1)), cpu=False)["devices"] == 1


@pytest.mark.parametrize(
    ("line", "status", "error"),
    [
        ("No module named torch", 1, r"has no PyTorch \(No module named torch\): name an interpreter"),
        (probed(devices=0), 0, r"PyTorch 2\.11 \(CUDA 12\.8\) finds no GPU: does `nvidia-smi` list one"),
        (probed(devices=0, cuda="null"), 0, r"PyTorch 2\.11 \(a build without CUDA\) finds no GPU"),
        (probed(devices=1).replace("true", "false"), 0, r"has no torch\.distributed"),
    ],
)
def test_without_pytorch_or_gpu_there_is_no_rig(interpreter, line, status, error):
    """The message says what is missing and what to do."""
    with pytest.raises(NoGpu, match=error):
        check(interpreter(line, status), cpu=False)


def test_the_rig_itself_may_be_tried_without_a_gpu(interpreter):
    """PyTorch is enough."""
    assert check(interpreter(probed(devices=0)), cpu=True)["devices"] == 0


def test_an_interpreter_that_does_not_exist_is_refused():
    """By its name."""
    with pytest.raises(NoGpu, match="/nonexistent/python is no interpreter that starts"):
        check("/nonexistent/python", cpu=False)


def test_a_job_that_does_not_start_says_why(tmp_path):
    """At once, with the last line of the rank that ended."""
    job = Job(tmp_path)
    job.log(0).write_text("RuntimeError: no route\nframe #1: main\n")
    job.ranks.append(Process.spawn(["true"], log=tmp_path / "out"))
    with pytest.raises(NotStarted, match=r"rank 0 ended; .*gpu-job-rank0\.log: RuntimeError: no route"):
        job.wait_for_steps(1)
