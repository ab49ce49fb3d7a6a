"""README and quickstart, run: each command of their shell blocks, in order, as a new user would."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# What needs an engine, another environment or minutes is run elsewhere: a command, and the test that runs it.
ELSEWHERE = {
    "make demo": "tests/cli/run/test_demo.py",
    "make test": "tests",
    "python3 -m venv ~/slowrank && ~/slowrank/bin/pip install ./slowrank '.[all]'"
    " && export PATH=~/slowrank/bin:$PATH": "tests/test_packaging.py",
    "slowrank init && docker compose up -d --wait": "tests/deploy/test_compose.py",
    "slowrank gray healthy.ndjson -o gray.json": "tests/cli/files/test_gray.py",
}
# Exits with 1 where something needs attention, as on a machine without GPUs.
MAY_WARN = {"slowrank doctor"}
# What a page promises of one of its commands.
FOUND = {
    "README.md": ("slowrank replay steps.csv", "error     Rank 5 of job job is 1.20x slower than 7 peers"),
    "docs/quickstart.md": (
        "slowrank replay trace.ndjson.gz",
        "sim-0001 GPU 2 (rank 6) is 1.19x slower than 7 peers",
    ),
}


def commands(page):
    """Return the commands of the shell blocks of a page, without comments."""
    blocks = re.findall(r"^```console\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)
    lines = [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    return [re.sub(r"\s{2,}#.*", "", line) for line in lines]


class Session:
    """A folder, a PATH with slowrank, and what was started in the background."""

    def __init__(self, folder, receiver):
        self.folder = folder
        port = receiver.rsplit(":", 1)[1].partition("/")[0]
        self.replaced = {
            "https://hooks.example.org/gpu": receiver,
            "--seconds 120": "--seconds 3",
            "--slow-after 40": "--slow-after 1",
        }
        clean = {n: v for n, v in os.environ.items() if not n.startswith("SLOWRANK_")}
        self.env = clean | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(folder),
            "TMPDIR": str(folder),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "SLOWRANK_WEBHOOK_ALLOW_HTTP": '["127.0.0.1"]',
            "SLOWRANK_WEBHOOK_ALLOW_PRIVATE": '["127.0.0.1"]',
            "SLOWRANK_WEBHOOK_ALLOW_PORTS": f"[{port}]",
        }
        self.running = list[subprocess.Popen[bytes]]()

    def run(self, command):
        """Run one command and return what it printed; ``slowrank up`` goes on in the background."""
        if command == "slowrank up":
            return self._up()
        for old, new in self.replaced.items():
            command = command.replace(old, new)
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=120,
        )
        allowed = {0, 1} if command in MAY_WARN else {0}
        assert done.returncode in allowed, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def _up(self):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind(("127.0.0.1", 0))
            listen = f"127.0.0.1:{probe.getsockname()[1]}"
        command = ["slowrank", "up", "--data", str(self.folder / "data"), "--port", "0", "--listen", listen]
        self.env |= {"SLOWRANK_EXPORTER": listen}
        started = subprocess.Popen(
            command, cwd=self.folder, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self.running.append(started)
        assert started.stdout is not None
        return started.stdout.readline().decode()

    def close(self):
        """Stop what runs."""
        for started in self.running:
            started.send_signal(signal.SIGINT)
            started.communicate(timeout=60)
            assert started.returncode == 0


@pytest.fixture
def receiver():
    """The address of a webhook receiver on loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/hook"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def session(receiver):
    """A new user's session; PostgreSQL's user can enter the folder also as root."""
    with tempfile.TemporaryDirectory(prefix="slowrank-docs-") as made:
        Path(made).chmod(0o711)
        (Path(made) / "examples").symlink_to(ROOT / "examples")
        held = Session(Path(made), receiver)
        try:
            yield held
        finally:
            held.close()


def write_steps(path):
    """Write the step times that the README describes: rank 5 of eight becomes slower by a fifth."""
    rows = ["step,rank,ts,step_seconds,compute_seconds"]
    for step in range(120):
        slow = 1.2 if step >= 60 else 1.0
        for rank in range(8):
            compute = (0.8 + 0.001 * ((rank * 7 + step * 3) % 5)) * (slow if rank == 5 else 1.0)
            rows.append(f"{step},{rank},{1795160000 + step:.3f},{0.8 * slow + 0.105:.4f},{compute:.4f}")
    path.write_text("\n".join(rows) + "\n")


def test_what_is_run_elsewhere_is_named_as_written():
    """Each is a command of a page, and its test is there."""
    written = [*commands("README.md"), *commands("docs/quickstart.md")]
    assert set(ELSEWHERE) <= set(written)
    assert all((ROOT / test).exists() for test in ELSEWHERE.values())


@pytest.mark.slow  # 35 s of CPU: the commands in turn, each page with a database
@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md"])
def test_every_command_of_a_page_works(session, page):
    """In the order of the page, all in one folder; the README names its slow rank."""
    write_steps(session.folder / "steps.csv")
    (session.folder / "other.toml").write_text("[detectors.peer_step]\nmin_effect = 0.03\n")
    printed = {}
    for command in commands(page):
        if command not in ELSEWHERE:
            printed[command] = session.run(command)
    assert "slowrank is up" in printed["slowrank up"]
    assert FOUND[page][1] in printed[FOUND[page][0]]
    assert len(printed) >= 9
