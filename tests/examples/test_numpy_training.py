import json
import os
import socket
import statistics
import subprocess
import sys
import threading
from collections import defaultdict
from pathlib import Path

import pytest

from examples.numpy_training import options_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def train():
    """Run the job with a socket in the exporter's place; return its output and each rank's rows."""

    def run(*arguments):
        rows: defaultdict[int, list[list[float]]] = defaultdict(list)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
            listener.bind(("127.0.0.1", 0))
            listener.settimeout(0.5)
            ended = threading.Event()
            thread = threading.Thread(target=listen, args=(listener, rows, ended))
            thread.start()
            environ = os.environ | {"SLOWRANK_EXPORTER": f"127.0.0.1:{listener.getsockname()[1]}"}
            command = [sys.executable, str(ROOT / "examples/numpy_training.py"), *arguments]
            done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
            ended.set()
            thread.join()
        assert done.returncode == 0, done.stderr
        return done.stdout, rows

    return run


def listen(listener, rows, ended):
    while True:
        try:
            datagram = json.loads(listener.recv(65536))
        except TimeoutError:
            if ended.is_set():
                return
            continue
        rows[datagram["rank"]] += datagram["rows"]


def median_ms(rows, column):
    return 1000 * statistics.median(row[column] or 0.0 for row in rows)


STEP, TS, STEP_SECONDS, COMPUTE, WAIT = 0, 1, 2, 3, 4


@pytest.mark.slow
def test_ranks_train_in_step_and_learn(train):
    """Four processes do the same steps, every rank reports each of them, and the loss falls."""
    output, rows = train("--ranks", "4", "--steps", "25")

    assert sorted(rows) == [0, 1, 2, 3]
    for reported in rows.values():
        assert [row[STEP] for row in reported] == list(range(25))
    first, last = (float(part) for part in output.split("loss ")[1].split("\n")[0].split(" -> "))
    assert last < 0.7 * first


@pytest.mark.alone
@pytest.mark.slow
def test_the_slowed_rank_computes_longer_and_waits_least(train):
    """A rank that gets half the processor time it needs stands out, and the others wait for it."""
    _, rows = train("--isolate", "--seconds", "20", "--slow-rank", "2", "--slow-after", "6")

    late = {rank: held[len(held) * 2 // 3 :] for rank, held in rows.items()}
    compute = {rank: median_ms(held, COMPUTE) for rank, held in late.items()}
    wait = {rank: median_ms(held, WAIT) for rank, held in late.items()}
    assert max(compute, key=lambda rank: compute[rank]) == 2
    assert compute[2] > 1.1 * statistics.median(compute[rank] for rank in (0, 1, 3))
    assert min(wait, key=lambda rank: wait[rank]) == 2


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("--ranks 0", "--ranks must be at least 1"),
        ("--ranks 2 --slow-rank 2", "--slow-rank must be one of the ranks, 0 to 1"),
        ("--seconds 5 --slow-rank 1 --slow-after 20", "--slow-after 20 must be below --seconds 5"),
        ("--slow-rank 1 --slow-after 0", "--slow-after must be above 0"),
        ("--slow-rank 1 --slow-factor 1", "--slow-factor must be above 1"),
    ],
)
def test_a_run_that_cannot_be_is_refused(arguments, error, capsys):
    """With the option that is wrong; nothing starts."""
    with pytest.raises(SystemExit, match="2"):
        options_of(arguments.split())

    assert error in capsys.readouterr().err


@pytest.mark.slow
def test_a_rank_that_ended_is_not_slowed():
    """A job of few steps ends before the rank is slowed: it says so at once."""
    command = [sys.executable, str(ROOT / "examples/numpy_training.py"), "--ranks", "2", "--steps", "2"]

    done = subprocess.run([*command, "--slow-rank", "1"], capture_output=True, text=True, timeout=25)

    assert done.returncode == 1
    assert "the job ended before --slow-after 30" in done.stderr
    assert "slowing" not in done.stdout


def test_the_torch_example_says_what_it_needs():
    """Without PyTorch the example names it and ends with status 2."""
    command = [sys.executable, "-c", "import sys; sys.modules['torch'] = None; import runpy; "]
    command[-1] += f"runpy.run_path({str(ROOT / 'examples/torch_ddp.py')!r}, run_name='__main__')"

    done = subprocess.run(command, capture_output=True, text=True, timeout=30)

    assert done.returncode == 2
    assert "pip install torch" in done.stderr
