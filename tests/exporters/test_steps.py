import json
import socket
import time
from pathlib import Path

import pytest

from exporters import steps
from exporters.collector import Instant
from exporters.steps import StepsCollector
from slowrank import StepTimer
from slowrank.telemetry import OpenStep


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "steps.sock")


@pytest.fixture
def collector(path):
    made = StepsCollector([path], lambda: {"GPU-8f1c9a52-0b7e": 0, "GPU-8f1c0000-0b7e": 1})
    yield made
    made.close()


@pytest.fixture
def send(path, collector):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(path)
        sender.setblocking(False)
        yield sender.send


def now():
    return Instant(wall=time.time(), monotonic=time.monotonic())


def datagram(**changes):
    row = [changes.pop("step", 1), time.time(), 0.1, 0.08, 0.02, None, None, None, 64, None, None]
    message = {"v": 1, "job_id": "job", "attempt": 0, "rank": 0, "local_rank": 0, "seq": 1, "dropped": 0}
    message |= {"world_size": 4, "gpu_index": None, "coords": {"dp": 0}, "labels": {}, "rows": [row]}
    return json.dumps(message | changes).encode()


def test_rows_of_local_ranks_are_gathered_by_attempt(send, collector):
    """Ranks of one attempt share a batch; another attempt has its own."""
    send(datagram(rank=0))
    send(datagram(rank=1, coords={"dp": 1}))
    send(datagram(rank=0, attempt=1))

    first, second = collector.collect(now()).steps

    assert [row["rank"] for row in first.rows] == [0, 1]
    assert first.rows[1]["dp"] == 1
    assert (first.job_id, first.attempt, first.world_size) == ("job", 0, 4)
    assert first.rows[0]["compute_seconds"] == 0.08
    assert first.rows[0]["data_seconds"] is None
    assert second.attempt == 1


@pytest.mark.parametrize(
    ("uuid", "index"),
    [
        ("GPU-8f1c0000-0b7e", 1),
        ("GPU-8F1C9", 0),
        pytest.param("GPU-8f1c", None, id="two-begin-so"),
        pytest.param("GPU-77", None, id="not-of-this-node"),
    ],
)
def test_a_gpu_named_by_uuid_is_found_by_its_index(path, collector, uuid, index):
    """A rank that gives its GPU by UUID, or by the beginning of one, is placed on that GPU."""
    environ = {"RANK": "0", "LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": uuid}
    timer = StepTimer(exporter=path, environ=environ)
    with timer.step(1):
        pass
    timer.close()

    [batch] = collector.collect(now()).steps

    assert [row["gpu_index"] for row in batch.rows] == [index]


def test_the_hook_and_the_listener_speak_the_same(path, collector):
    """What StepTimer sends arrives as rows of the step schema."""
    timer = StepTimer(
        exporter=path, environ={}, rank=2, job_id="real", coords={"dp": 2}, labels={"phase": "train"}
    )
    with timer.step(40, tokens=8, seq_len_sq_sum=34), timer.phase("wait"):
        pass
    with timer.step(41):
        pass
    timer.close()

    [batch] = collector.collect(now()).steps

    assert batch.job_id == "real"
    assert batch.labels == {"phase": "train"}
    assert batch.rows[0]["step"] == 40
    assert batch.rows[0]["rank"] == 2
    assert batch.rows[0]["tokens"] == 8
    assert [row["seq_len_sq_sum"] for row in batch.rows] == [34, None]


def test_udp_serves_as_well(instants):
    """The default way in is UDP on the loopback address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    collector = StepsCollector([f"127.0.0.1:{port}"])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(datagram(), ("127.0.0.1", port))
    time.sleep(0.05)

    assert len(collector.collect(now()).steps) == 1
    collector.close()


HOSTILE = {
    "empty": b"",
    "not json": b"\xff\x00garbage",
    "deep": b"[" * 5000,
    "version": datagram(v=2),
    "label": datagram(job_id="a b; DROP TABLE jobs"),
    "long label": datagram(job_id="x" * 129),
    "negative rank": datagram(rank=-1),
    "huge rank": datagram(rank=2**40),
    "huge coordinate": datagram(coords={"dp": 10**30}),
    "no rows field type": datagram(rows="many"),
    "short row": datagram(rows=[[1, 2]]),
    "text in a row": datagram(rows=[["1", "2", 3, 4, 5, 6, 7, 8, 9, 10, 11]]),
    "past": datagram(rows=[[1, 1.0, 0.1, *[None] * 8]]),
    "future": datagram(rows=[[1, time.time() + 1e6, 0.1, *[None] * 8]]),
    "negative time": datagram(rows=[[1, time.time(), -0.1, *[None] * 8]]),
    "endless step": datagram(rows=[[1, time.time(), 1e300, *[None] * 8]]),
    "infinite": datagram().replace(b"0.08", b"1e999"),
    "nan": datagram().replace(b"0.08", b"NaN"),
    "squares of other rows": datagram(seq_len_sq_sum=[1e13, 1e13]),
    "text for squares": datagram(seq_len_sq_sum=["many"]),
    "too many rows": datagram(rows=[[1, time.time(), 0.1, *[None] * 8]] * 300),
    "too many labels": datagram(labels={f"l{n}": "v" for n in range(40)}),
}


@pytest.mark.parametrize("payload", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_datagram_is_dropped_and_counted(send, collector, payload):
    """Nothing of it gets through, the good datagram beside it does."""
    send(payload)
    send(datagram(rank=3))

    [batch] = collector.collect(now()).steps

    assert [row["rank"] for row in batch.rows] == [3]
    rejected = {k: v for k, v in collector.metrics().items() if k.startswith("step_datagrams_rejected")}
    assert sum(rejected.values()) == 1


def test_a_flood_is_cut_off_and_counted(path, collector, monkeypatch):
    """A tick takes a bounded number of datagrams, rows and attempts, whoever sends them."""
    monkeypatch.setattr(steps, "MAX_ROWS_PER_TICK", 4)
    monkeypatch.setattr(steps, "MAX_ATTEMPTS", 2)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.connect(path)
        for n in range(3):
            sender.send(datagram(job_id=f"job{n}"))
        sender.send(datagram(rows=json.loads(datagram())["rows"] * 3))

    batches = collector.collect(now()).steps

    assert [batch.job_id for batch in batches] == ["job0", "job1"]
    assert collector.metrics()["step_rows_dropped_total"] == 1 + 3


def test_lost_datagrams_and_rows_are_counted(send, collector):
    """A gap in a rank's sequence, and what its ring dropped, become counters."""
    send(datagram(seq=1))
    send(datagram(seq=5, dropped=12))
    collector.collect(now())

    assert collector.metrics()["step_datagrams_lost_total"] == 3
    assert collector.metrics()["step_rows_dropped_total"] == 12


def test_a_restarted_rank_is_no_gap(send, collector):
    """A rank whose process starts again counts from 1."""
    send(datagram(seq=900))
    send(datagram(seq=1))
    collector.collect(now())

    assert collector.metrics()["step_datagrams_lost_total"] == 0


def test_a_taken_address_is_refused(instants):
    """A second exporter fails with the error of the system."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        with pytest.raises(OSError, match=r"in use: 127\.0\.0\.1:\d+ \(UDP\)"):
            StepsCollector([f"127.0.0.1:{other.getsockname()[1]}"])


@pytest.mark.parametrize("address", ["garbage", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:-1", ":x"])
def test_an_address_that_is_none_is_refused(address, path):
    """It is an OSError that shows the address, and sockets already open are closed again."""
    with pytest.raises(OSError, match="host:port"):
        StepsCollector([path, address])
    StepsCollector([path]).close()


def test_a_socket_that_is_in_use_is_left_alone(path, collector, send):
    """A second exporter is refused, and the first one's socket goes on to receive."""
    with pytest.raises(OSError, match="is another exporter running"):
        StepsCollector([path])
    send(datagram())
    assert collector.collect(now()).steps


def test_a_socket_of_another_program_is_left_alone(path):
    """A path that was meant for something else: that goes on listening."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(path)
        other.listen()
        with pytest.raises(OSError, match="another program's socket"):
            StepsCollector([path])
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.connect(path)


def test_a_killed_exporters_socket_is_replaced_and_the_new_one_outlives_the_old(path):
    """What is left of a dead one is no obstacle; an end removes the socket that is its own alone."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(path)
    old = StepsCollector([path])
    Path(path).unlink()
    new = StepsCollector([path])
    old.close()
    assert Path(path).is_socket()
    new.close()
    assert not Path(path).exists()


def test_steps_that_do_not_end_are_passed_on(send, collector):
    """They come without rows, and one datagram may have both."""
    send(datagram(rank=0, rows=[], open=[7, "wait", 12.5], at="train.py:141 in load"))
    send(datagram(rank=1))

    [found] = collector.collect(now()).steps

    assert found.open == (OpenStep(rank=0, step=7, phase="wait", seconds=12.5, at="train.py:141 in load"),)
    assert [row["rank"] for row in found.rows] == [1]


@pytest.mark.parametrize(
    "opened", [[-1, "wait", 1.0], [7, "wait", -1.0], [7, "no phase", 1.0], [7, "x" * 200, 1.0]]
)
def test_open_steps_that_are_none_are_rejected(send, collector, opened):
    """Numbers below zero, and names that are none."""
    send(datagram(rows=[], open=opened))

    assert collector.collect(now()).steps == ()
    assert sum(n for name, n in collector.metrics().items() if "rejected" in name) == 1


@pytest.mark.parametrize("at", ["x" * 257, "train.py:1\n", "a\0"])
def test_lines_of_code_that_are_none_are_rejected(send, collector, at):
    """Too long, or with characters that no page can show."""
    send(datagram(rows=[], open=[7, "wait", 1.0], at=at))

    assert collector.collect(now()).steps == ()
    assert sum(n for name, n in collector.metrics().items() if "rejected" in name) == 1
