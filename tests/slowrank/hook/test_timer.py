import json
import queue
import socket
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slowrank import StepTimer
from slowrank.hook import sender
from slowrank.hook.timer import NOTES, PHASES
from slowrank.telemetry.datagram import ROW_FIELDS, decode_datagram


class Clock:
    """A clock that moves when told to."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def pass_seconds(self, seconds):
        self.now += seconds


@pytest.fixture
def exporter():
    """A bound UDP socket in the exporter's place."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as bound:
        bound.bind(("127.0.0.1", 0))
        bound.settimeout(5)
        yield bound


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def timer(exporter, clock):
    made = StepTimer(
        exporter=f"127.0.0.1:{exporter.getsockname()[1]}", environ={}, clock=clock, job_id="job", rank=3
    )
    yield made
    made.close()


def received(exporter, timer):
    timer.flush()
    datagram = decode_datagram(exporter.recv(65536), now=time.time())
    return [dict(zip(ROW_FIELDS, row, strict=True)) for row in datagram.rows]


def test_three_lines_are_enough(exporter, timer, clock):
    """A step without phases is all compute, and reaches the exporter as the codec reads it."""
    with timer.step(tokens=4096):
        clock.pass_seconds(0.25)

    [row] = received(exporter, timer)

    assert row["step"] == 0
    assert row["step_seconds"] == row["compute_seconds"] == 0.25
    assert row["tokens"] == 4096
    assert abs(row["ts"] - time.time()) < 5
    assert [row[f"{name}_seconds"] for name in PHASES[1:]] == [None] * 4


def test_squared_lengths_stand_beside_the_rows(exporter, timer):
    """An exporter that does not know them reads the rows as ever; without them nothing else is sent."""
    with timer.step(tokens=4096):
        pass
    timer.flush()
    plain = json.loads(exporter.recv(65536))
    with timer.step(seq_len_sq_sum=2**44):
        pass
    with timer.step():
        timer.note(seq_len_sq_sum=None)
    timer.flush()
    told = json.loads(exporter.recv(65536))

    assert "seq_len_sq_sum" not in plain
    assert told["seq_len_sq_sum"] == [2**44, None]
    assert {len(row) for row in (*plain["rows"], *told["rows"])} == {len(ROW_FIELDS)}


def test_compute_is_what_the_other_phases_leave(exporter, timer, clock):
    """Without an explicit compute phase, compute is the step's block less its phases."""
    with timer.step():
        clock.pass_seconds(0.1)
        with timer.phase("data"):
            clock.pass_seconds(0.02)
        clock.pass_seconds(0.3)
        with timer.phase("wait"):
            clock.pass_seconds(0.08)

    [row] = received(exporter, timer)

    assert row["compute_seconds"] == pytest.approx(0.4)
    assert row["data_seconds"] == pytest.approx(0.02)
    assert row["wait_seconds"] == pytest.approx(0.08)


def test_an_explicit_compute_phase_counts_alone(exporter, timer, clock):
    """With a compute phase, time outside every phase belongs to none."""
    with timer.step():
        with timer.phase("compute"):
            clock.pass_seconds(0.1)
        clock.pass_seconds(0.5)

    [row] = received(exporter, timer)

    assert row["compute_seconds"] == pytest.approx(0.1)
    assert row["step_seconds"] == pytest.approx(0.6)


def test_nested_phases_are_charged_their_own_time(exporter, timer, clock):
    """A phase inside another takes its time out of the outer one."""
    with timer.step(), timer.phase("compute"):
        clock.pass_seconds(0.1)
        with timer.phase("comm"):
            clock.pass_seconds(0.05)
            with timer.phase("wait"):
                clock.pass_seconds(0.02)
        clock.pass_seconds(0.1)

    [row] = received(exporter, timer)

    assert row["compute_seconds"] == pytest.approx(0.2)
    assert row["comm_seconds"] == pytest.approx(0.05)
    assert row["wait_seconds"] == pytest.approx(0.02)


def test_steps_tile_the_time(exporter, timer, clock):
    """Time and phases between two steps belong to the later step, and not to its compute."""
    with timer.step():
        clock.pass_seconds(0.1)
    with timer.phase("data"):
        clock.pass_seconds(0.04)
    clock.pass_seconds(0.01)
    with timer.step():
        clock.pass_seconds(0.1)

    _, row = received(exporter, timer)

    assert row["step_seconds"] == pytest.approx(0.15)
    assert row["data_seconds"] == pytest.approx(0.04)
    assert row["compute_seconds"] == pytest.approx(0.1)


def test_step_numbers_continue_from_a_given_one(exporter, timer):
    """A resumed job says its step once; the hook counts on from there."""
    with timer.step(7000):
        pass
    with timer.step():
        pass

    assert [row["step"] for row in received(exporter, timer)] == [7000, 7001]


def test_training_errors_pass_through_and_their_step_is_not_recorded(exporter, timer):
    """An exception of the training code leaves the block untouched; the next step is timed as usual."""
    with pytest.raises(ZeroDivisionError), timer.step():
        _ = 1 / 0
    with timer.step():
        pass

    assert [row["step"] for row in received(exporter, timer)] == [1]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda t: t.end_step(),
        lambda t: (t.begin_step(), t.begin_step()),
        lambda t: t.phase("thinking").__enter__(),
        lambda t: t.phase(["compute"]).__enter__(),
        lambda t: t.note(tokens="many"),
        lambda t: t.note(weight=1.0),
        lambda t: t.note(tokens=float("nan")),
        lambda t: t.note(seq_len_sq_sum=float("inf")),
        lambda t: t.note(tokens=10**400),
        lambda t: t.begin_step("seven"),
        lambda t: t.phase("data").__exit__(None, None, None),
        lambda t: (t.begin_step(), t.phase("data").__enter__(), t.end_step()),
    ],
)
def test_wrong_use_is_counted_and_never_raises(exporter, timer, wrong):
    """Whatever is called wrongly, the misuse is counted and the next step is timed."""
    before = timer.misuse_total

    wrong(timer)

    assert timer.misuse_total > before
    timer.begin_step(50)
    timer.end_step()
    assert received(exporter, timer)[-1]["step"] == 50


anything = st.one_of(
    st.none(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.lists(st.integers()),
    st.dictionaries(st.text(), st.one_of(st.text(), st.integers())),
    st.builds(object),
)


@settings(max_examples=300, deadline=None)
@given(
    identity=st.dictionaries(
        st.sampled_from(["job_id", "attempt", "rank", "coords", "labels", "hat"]), anything
    ),
    environ=st.dictionaries(
        st.sampled_from(["RANK", "WORLD_SIZE", "SLOWRANK_COORDS", "MASTER_ADDR"]), st.text()
    ),
    calls=st.lists(
        st.tuples(st.sampled_from(["step", "phase", "note", "begin_step", "end_step", "flush"]), anything)
    ),
)
def test_no_argument_makes_the_hook_raise(identity, environ, calls):
    """Whatever its arguments, environment and order of calls, the hook lets training go on."""
    timer = StepTimer(exporter="127.0.0.1:9", environ=environ, **identity)
    for name, argument in calls:
        if name in ("step", "phase"):
            with getattr(timer, name)(argument):
                pass
        elif name == "note":
            timer.note(**{NOTES[0]: argument})
        elif name == "begin_step":
            timer.begin_step(argument)
        else:
            getattr(timer, name)()
    timer.close()


@pytest.mark.alone
def test_it_never_blocks_when_nobody_listens():
    """Without an exporter, or with one that does not read, steps cost microseconds and rows are dropped."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        for address in (
            "127.0.0.1:9",
            f"127.0.0.1:{deaf.getsockname()[1]}",
            "/nowhere/slowrank.sock",
            "off",
            "junk",
        ):
            timer = StepTimer(exporter=address, environ={}, rank=0)
            slowest = 0.0
            for _ in range(2000):
                began = time.perf_counter()
                with timer.step():
                    pass
                slowest = max(slowest, time.perf_counter() - began)
            timer.close()
            assert slowest < 0.25


def test_the_ring_is_bounded(exporter):
    """Rows beyond the ring push the oldest out, and the datagram says how many were lost."""
    timer = StepTimer(exporter="/nowhere/slowrank.sock", environ={}, rank=0)
    for _ in range(sender.RING_ROWS + 10):
        with timer.step():
            pass
    assert timer.dropped_total >= 10
    timer.close()


def test_rows_leave_within_a_second_and_at_close(exporter, timer):
    """Nobody calls flush: the sender thread does, every second."""
    with timer.step():
        pass

    datagram = json.loads(exporter.recv(65536))

    assert datagram["rank"] == 3
    assert len(datagram["rows"]) == 1


def test_a_unix_socket_serves_as_well(tmp_path):
    """``SLOWRANK_EXPORTER`` may name a unix datagram socket."""
    path = str(tmp_path / "steps.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(path)
        bound.settimeout(5)
        timer = StepTimer(environ={"SLOWRANK_EXPORTER": f"unix:{path}", "RANK": "1"})
        with timer.step():
            pass
        timer.close()
        assert json.loads(bound.recv(65536))["rank"] == 1


def test_the_exporter_may_come_back(exporter, timer):
    """Rows sent while nobody listened are lost; later ones arrive at the new listener."""
    port = exporter.getsockname()[1]
    exporter.close()
    for _ in range(3):
        with timer.step():
            pass
        timer.flush()
    assert timer.dropped_total > 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as again:
        again.bind(("127.0.0.1", port))
        again.settimeout(5)
        for step in range(100, 103):
            with timer.step(step):
                pass
            timer.flush()
        assert json.loads(again.recv(65536))["rows"][-1][0] in (100, 101)


_FORK = """
import os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)
from slowrank import StepTimer
timer = StepTimer(exporter=sys.argv[1], environ={}, rank=0)
with timer.step(0): pass
child = os.fork()
for _ in range(3):
    with timer.step(10 if child else 20): pass
timer.close()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_fork_keeps_both_sides_timing(exporter):
    """After a fork both processes send their own steps, and what was queued before is sent once."""
    address = f"127.0.0.1:{exporter.getsockname()[1]}"

    subprocess.run([sys.executable, "-c", _FORK, address], check=True, timeout=30)

    exporter.settimeout(0.5)
    steps = []
    while True:
        try:
            steps += [row[0] for row in json.loads(exporter.recv(65536))["rows"]]
        except TimeoutError:
            break
    assert sorted(steps) == [0, 10, 10, 10, 20, 20, 20]


def test_importing_the_hook_imports_nothing_else_of_ours():
    """A training process pays for the standard library and ``slowrank.hook`` alone."""
    loaded = modules_after("from slowrank import StepTimer") - modules_after("pass")
    foreign = {m for m in loaded if m.split(".")[0] not in sys.stdlib_module_names}

    assert {m for m in foreign if not m.startswith("slowrank.hook")} == {"slowrank"}


def modules_after(code):
    script = f"import sys; {code}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def test_importing_slowrank_is_quick():
    """``import slowrank`` takes less than half the processor time of the interpreter's own start."""
    code = "import time; start = time.process_time(); import slowrank; print(time.process_time() / start - 1)"
    shares = [
        float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout)
        for _ in range(3)
    ]

    assert min(shares) < 0.5


def test_a_dropped_timer_leaves_no_thread(exporter):
    """A timer that goes out of scope stops its sender."""
    timer = StepTimer(exporter=f"127.0.0.1:{exporter.getsockname()[1]}", environ={}, rank=0)
    with timer.step():
        pass
    stop = timer._sender._stop
    del timer

    assert stop.is_set()


def test_an_open_step_names_the_line_of_the_training_code(exporter, timer, clock):
    """Not that of the library in which the training thread is, nor of the sender's own thread."""

    def load(entered):
        entered.set()
        return queue.Queue().get()

    def train():
        with timer.step():
            load(entered)

    with timer.step():
        pass
    timer.flush()
    exporter.recv(65536)
    entered = threading.Event()
    threading.Thread(target=train, daemon=True).start()
    entered.wait()
    clock.pass_seconds(60.0)

    def line():
        timer._sender.report_open_step()
        return decode_datagram(exporter.recv(65536), now=time.time()).at

    # The thread may be on its way from the one line to the other.
    assert any(line().endswith(" in load") and f"{__file__}:" in line() for _ in range(20))


def test_a_step_that_does_not_end_is_reported(exporter, timer, clock):
    """With the phase that the rank is in; a step of less than twice the last one is not."""
    with timer.step():
        clock.pass_seconds(4.0)
    timer.flush()
    exporter.recv(65536)

    def reported():
        timer._sender.report_open_step()
        exporter.settimeout(0.05)
        try:
            return decode_datagram(exporter.recv(65536), now=time.time()).open
        except TimeoutError:
            return None

    with timer.step():
        clock.pass_seconds(7.9)
        assert reported() is None
        clock.pass_seconds(0.1)
        assert reported() == (1, "", 8.0)
        with timer.phase("wait"):
            assert reported() == (1, "wait", 8.0)
