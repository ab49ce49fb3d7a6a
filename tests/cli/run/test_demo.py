import fcntl
import io
import json
import logging
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import termios
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console
from typer.testing import CliRunner

from api.http import connections
from cli import app
from cli.embedded.database_folder import EmbeddedError
from cli.run.demo_scenario import accuses_healthy, draw, evaluate, names_culprit
from cli.run.demo_screen import Screen

SLOWRANK = [sys.executable, "-c", "from cli import main; main()"]
NOTHING_SET = {k: v for k, v in os.environ.items() if not k.startswith("SLOWRANK_")}


@pytest.fixture
def temporary():
    """A folder for temporary files of its own, which PostgreSQL's user can enter also when we are root."""
    with tempfile.TemporaryDirectory(prefix="slowrank-test-") as made:
        Path(made).chmod(0o711)
        yield Path(made)


@pytest.fixture
def truth():
    return next(c.truth[0] for c in (draw(s, start=0.0) for s in range(99)) if c.truth[0].gpu_index == 3)


@pytest.fixture
def connection_log():
    """The log of the API's connections; its level is reset afterwards."""
    yield connections.log
    connections.log.setLevel(logging.NOTSET)


def finding(truth, **subject):
    place = {"type": "gpu", "cluster": "sim", "node": truth.node, "gpu_index": truth.gpu_index} | subject
    return {"id": "fnd_x", "kind": "straggler.fail_slow", "subject": place}


@pytest.mark.slow
def test_no_broker_client_is_needed():
    """The demo's environment has neither Faust nor a Kafka client, and the one process needs neither."""
    absent = "import sys; sys.modules.update(dict.fromkeys(('faust', 'aiokafka', 'kafka', 'pyarrow')))"
    modules = "cli.run.demo, cli.run.demo_screen, cli.embedded.local_stack, streams.files.replay"
    subprocess.run([sys.executable, "-c", f"{absent}; import {modules}"], check=True)


def test_the_seed_decides_everything():
    """Equal seeds draw the same fault, and the seeds together draw every kind at many places."""
    assert draw(5, start=9.0).faults == draw(5, start=9.0).faults
    drawn = [draw(seed, start=0.0).faults[0] for seed in range(60)]
    assert {f.kind for f in drawn} == {"thermal_throttle", "clock_lock", "silent_slow", "host_contention"}
    assert len({f.node for f in drawn}) > 12


def test_only_the_right_machine_under_a_right_name_counts(truth):
    """The culprit's GPU is right; its node, its neighbour, another node or another kind is not."""
    assert names_culprit(finding(truth), truth)
    for other in ({"gpu_index": None}, {"gpu_index": 4}, {"node": "sim-9999"}):
        assert not names_culprit(finding(truth, **other), truth)
    assert not names_culprit(finding(truth) | {"kind": "host.clock_skew"}, truth)


def test_who_is_accused_wrongly(truth):
    """Another node or another GPU of the same node is healthy; the culprit, its node and the job are not."""
    accused: list[dict[str, Any]] = [
        {"node": "sim-9999"},
        {"gpu_index": 4},
        {},
        {"gpu_index": None},
        {"node": None, "type": "job"},
    ]
    assert [accuses_healthy(finding(truth, **s), truth) for s in accused] == [True, True, False, False, False]


def test_the_verdict_passes_only_without_false_findings(truth):
    """Only the slow one named: passed. Not named, or a healthy one named as well: failed."""
    right, wrong = finding(truth), finding(truth, node="sim-9999")
    assert evaluate(1, truth, [right], seconds=9.0).passed
    assert not evaluate(1, truth, [right, wrong], seconds=9.0).passed
    missed = evaluate(1, truth, [], seconds=None)
    assert (missed.passed, missed.found, missed.correct) == (False, False, False)
    both = evaluate(1, truth, [wrong, right], seconds=9.0).to_json()
    assert (both["found"], both["correct"], both["false_findings"], both["finding"]) == (True, True, 1, right)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", [7, 8])
def test_the_demo_names_the_culprit_and_leaves_nothing(tmp_path, temporary, seed):
    """--once exits 0 with the verdict in the file, and takes its folder with it."""
    out, began = tmp_path / "out.json", time.time()
    done = subprocess.run(
        [*SLOWRANK, "demo", "--once", "--seed", str(seed), "--json", str(out), "--speed", "0"],
        env=NOTHING_SET | {"TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        check=False,
    )
    verdict = json.loads(out.read_text())
    assert done.returncode == 0, done.stdout + done.stderr
    assert (verdict["found"], verdict["correct"], verdict["false_findings"]) == (True, True, 0)
    assert 0 < verdict["seconds_to_finding"] < 60
    assert verdict["finding"]["title"] in done.stdout
    # Pages warn of samples that are older than two minutes.
    assert 0 < began - datetime.fromisoformat(verdict["finding"]["onset"]).timestamp() < 120
    # What it served has ended: the only address printed is that of the API while it ran.
    assert f"proof  in {out}" in done.stdout
    assert len(re.findall("http://", done.stdout)) == 1
    assert not list(temporary.iterdir())


def test_the_screen_shows_what_changed_and_how_to_read_the_proof():
    """The cause comes with the measured change, in the units people use, and the proof is an address."""
    written = io.StringIO()
    screen = Screen(Console(file=written))
    sm_clock = {"metric": "gpu.clock.sm_hz", "value": 1.56e9, "baseline": {"median": 1.755e9}}
    why = {"hypothesis": "throttle.thermal", "confidence": 0.953, "ruled_out": ["data_loading", "network"]}
    screen.details(
        {"id": "fnd_1", "cause": why, "evidence": [sm_clock, {"metric": "other"}]}, "http://a/f?t=1"
    )
    screen.waiting("http://a", "/tmp/key", ".venv-demo/bin/slowrank", "http://a/sign-in/once?next=%2F")
    shown = written.getvalue()
    assert "thermal throttling 95 %   (SM clock 1755 → 1560 MHz)" in shown
    assert "data loading ✓  network ✓" in shown
    assert "export SLOWRANK_URL=http://a SLOWRANK_KEY_FILE=/tmp/key" in shown
    assert ".venv-demo/bin/slowrank findings list" in shown
    assert "proof  http://a/f?t=1" in shown
    assert "  http://a/sign-in/once?next=%2F\n" in shown


def test_the_screen_shows_a_finding_again_when_it_has_changed():
    """A finding is shown once; its title again when that, the severity or the onset is another."""
    written = io.StringIO()
    screen = Screen(Console(file=written, width=100))
    first = "2026-11-20T07:00:10Z"
    told = {"id": "f", "onset": first, "onset_interval": [first, first], "severity": "error", "title": "slow"}
    start = 1795158000.0
    for change in ({}, {}, {"severity": "critical"}, {"title": "slower"}, {"onset": "2026-11-20T07:00:08Z"}):
        told |= change
        screen.finding(12.0, told, start)
    lines = [line.split(maxsplit=1)[1] for line in written.getvalue().splitlines()]
    onset, title, graver, other, earlier, again = lines
    assert (onset[:24], earlier[:24]) == ("● onset estimated 00:10.", "● onset estimated 00:08.")
    assert (title, graver) == ("▲ ERROR  slow", "△ the same, now CRITICAL  slow")
    assert other == again == "△ the same  slower"


def test_the_screen_has_no_warnings_of_unused_connections(monkeypatch, connection_log):
    """Browsers open connections ahead; errors of connections are shown still."""

    def stopped(*_):
        raise EmbeddedError("far enough")

    monkeypatch.setattr("cli.embedded.local_stack.local_stack", stopped)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # pytest's own stay
    result = CliRunner().invoke(app, ["demo", "--once"])
    assert "far enough" in result.stderr
    assert not connection_log.isEnabledFor(logging.WARNING)
    assert connection_log.isEnabledFor(logging.ERROR)


def _heed_interrupts() -> None:
    """A shell lets what it runs in the background ignore SIGINT, and so would all that the tests start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _at_a_terminal() -> None:
    """Keys are read from the terminal that controls the process only."""
    _heed_interrupts()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_ctrl_c_ends_the_demo_cleanly(temporary):
    """SIGINT in mid-play stops the server, removes the folder and exits with 130."""
    playing = subprocess.Popen(
        [*SLOWRANK, "demo", "--once", "--seed", "7", "--speed", "1"],
        env=NOTHING_SET | {"TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_heed_interrupts,
    )
    assert playing.stdout is not None
    assert "seed 7" in playing.stdout.readline()
    time.sleep(1)
    playing.send_signal(signal.SIGINT)
    _, errors = playing.communicate(timeout=60)
    assert playing.returncode == 130, errors
    assert "Traceback" not in errors
    assert not list(temporary.iterdir())


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.skipif(sys.platform == "win32", reason="needs a terminal of Unix")
def test_the_proof_opens_while_the_demo_stays(temporary):
    """On a terminal the demo goes on after the verdict, and its proof is a page that opens without a key.

    What a key breaks is printed.
    """
    ours, its = pty.openpty()
    playing = subprocess.Popen(
        [*SLOWRANK, "demo", "--seed", "7", "--speed", "0"],
        env=NOTHING_SET | {"TMPDIR": str(temporary), "COLUMNS": "300"},
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
        preexec_fn=_at_a_terminal,
    )
    os.close(its)
    try:
        shown = b""
        while b"Press Ctrl-C" not in shown:
            # Ends with an OSError where the demo does.
            shown += os.read(ours, 65536)
        proof = re.search(r"proof\S*\s+(http://\S+)", re.sub(r"\x1b\[[0-9;]*m", "", shown.decode()))
        assert proof, shown
        answer = httpx.get(proof[1], trust_env=False)
        assert answer.status_code == 200, answer.text
        assert "is 1." in answer.text
        assert "slower than" in answer.text
        link = re.search(r"http://\S+/sign-in/\S+", shown.decode())
        assert link, shown
        with httpx.Client(trust_env=False, follow_redirects=True) as browser:
            signed_in = browser.get(link[0], headers={"accept": "text/html"})
        assert "slower than" in signed_in.text
        assert "/acknowledge" in signed_in.text
        os.write(ours, b"2")
        while shown.count(b"hidden from the detectors") < 2:
            shown += os.read(ours, 65536)
        playing.send_signal(signal.SIGINT)
        assert playing.wait(60) == 0
    finally:
        playing.kill()
        playing.wait()
        os.close(ours)
    assert not list(temporary.iterdir())
