import sys
import threading
import time
from itertools import pairwise

import pytest

from streams.runtime.housekeeping import health_file, pulse
from streams.runtime.supervisor import Supervisor


def python(code):
    return [sys.executable, "-c", code]


def run_for(supervisor, condition, within=20.0):
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    deadline = time.monotonic() + within
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    supervisor.stop.set()
    thread.join(30)
    assert not thread.is_alive()


def test_a_child_that_ends_is_started_again(tmp_path):
    """Whatever the exit code, the command runs again after a pause."""
    marks = tmp_path / "marks"
    marks.touch()
    child = python(f"open({str(marks)!r}, 'a').write('x'); raise SystemExit(3)")
    run_for(Supervisor([child]), lambda: len(marks.read_text()) >= 2)
    assert len(marks.read_text()) >= 2


@pytest.mark.slow
def test_a_child_that_keeps_ending_waits_longer_each_time(tmp_path):
    """At once after the first time, then after a second, then after two."""
    marks = tmp_path / "marks"
    marks.touch()
    child = python(f"import time; open({str(marks)!r}, 'a').write(f'{{time.monotonic()}} ')")
    run_for(Supervisor([child]), lambda: len(marks.read_text().split()) >= 4)
    starts = [float(mark) for mark in marks.read_text().split()]
    _, second, third = (after - before for before, after in pairwise(starts[:4]))
    assert second >= 1.0
    assert third >= 2.0


def test_a_child_that_ends_for_the_first_time_is_started_at_once(tmp_path):
    """By the supervisor's clock, which stands still here."""
    marks = tmp_path / "marks"
    marks.touch()
    child = python(f"open({str(marks)!r}, 'a').write('x')")
    supervisor = Supervisor([child], clock=lambda: 0.0)
    run_for(supervisor, lambda: len(marks.read_text()) >= 2)
    assert marks.read_text() == "xx"


def test_a_child_that_dies_is_reported_and_one_that_ends_is_not(tmp_path):
    """Who dies without leaving its group has to be taken out of it."""
    marks = tmp_path / "marks"
    ended: list[int] = []
    marks.touch()
    dies = python(f"import os; open({str(marks)!r}, 'a').write(f'{{os.getpid()}} '); os.kill(os.getpid(), 9)")
    ends = python("pass")
    run_for(Supervisor([dies, ends], ended=ended.append), lambda: len(marks.read_text().split()) >= 2)
    assert ended[0] == int(marks.read_text().split()[0])
    assert {str(pid) for pid in ended} <= set(marks.read_text().split())


def test_stopping_ends_every_child_in_good_order(tmp_path):
    """Children are asked to end, and have ended when the supervisor returns."""
    started, ended = tmp_path / "started", tmp_path / "ended"
    code = (
        "import signal, sys, time, pathlib\n"
        f"def bye(*_): pathlib.Path({str(ended)!r} + sys.argv[1]).touch(); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, bye)\n"
        f"pathlib.Path({str(started)!r} + sys.argv[1]).touch()\n"
        "time.sleep(60)"
    )
    children = [[*python(code), name] for name in "ab"]
    run_for(Supervisor(children), lambda: all((tmp_path / f"started{n}").exists() for n in "ab"))
    assert all((tmp_path / f"ended{n}").exists() for n in "ab")


@pytest.mark.slow
def test_a_child_without_a_sign_of_life_is_killed_and_started_again(tmp_path):
    """A process that lives and does nothing is replaced; one that writes about itself is left alone."""
    pids = tmp_path / "pids"
    pids.touch()
    child = python(f"import os, time; open({str(pids)!r}, 'a').write(f'{{os.getpid()}} '); time.sleep(60)")
    beats = iter(range(1, 10_000))

    def pulse(pid):
        first = pids.read_text().split()[:1]
        return 1.0 if [str(pid)] == first else float(next(beats))

    supervisor = Supervisor([child], pulse=pulse, silent_seconds=1.0)
    run_for(supervisor, lambda: len(pids.read_text().split()) >= 2)
    assert len(pids.read_text().split()) == 2


def test_the_pulse_of_a_worker_is_when_it_last_wrote_about_itself(tmp_path):
    """Nothing before it wrote; then the time of its file, and no other worker's."""
    assert pulse(tmp_path, 7) == 0.0
    file = health_file(tmp_path, "sink", 7)
    file.touch()
    health_file(tmp_path, "sink", 77).touch()
    assert pulse(tmp_path, 7) == file.stat().st_mtime
