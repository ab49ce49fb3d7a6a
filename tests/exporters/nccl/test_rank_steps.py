"""Steps found in the collectives of ranks: the same ones on every rank, with who waited for whom."""

import json
from collections import Counter
from statistics import mean

import msgspec
import pytest

from exporters.nccl.rank_steps import RankSteps
from exporters.nccl.record import Communicator, Operation, parse
from exporters.nccl.step_sequence import LAPSE_SECONDS
from tests.exporters.nccl.inspector import Writer

# The examples of plugins/profiler/inspector/README.md in NCCL, without and with event trace.
PLAIN = (
    '{"header":{"id":"0x7f8c496ae9f661","rank":2,"n_ranks":8,"nnodes":1},"metadata":{'
    '"inspector_output_format_version":"v4.0","git_rev":"","rec_mechanism":"profiler_plugin",'
    '"dump_timestamp_us":1748030377748202,"hostname":"example-hostname","pid":1639453},"coll_perf":{'
    '"coll":"AllReduce","coll_sn":1407,"coll_msg_size_bytes":17179869184,"coll_exec_time_us":61974,'
    '"coll_algobw_gbs":277.210914,"coll_busbw_gbs":485.119099}}'
)
TRACE = (
    '{"header":{"id":"0xe62dedaa97644a","rank":4,"n_ranks":8,"nnodes":1},"metadata":{'
    '"inspector_output_format_version":"v4.0","git_rev":"9019a1912-dirty","rec_mechanism":'
    '"nccl_profiler_interface","dump_timestamp_us":1752867229276385,"hostname":"example-hostname",'
    '"pid":438776},"coll_perf":{"coll":"ReduceScatter","coll_sn":1231,"coll_msg_size_bytes":2147483648,'
    '"coll_exec_time_us":41057,"coll_timing_source":"kernel_gpu","coll_algobw_gbs":418.439467,'
    '"coll_busbw_gbs":366.134533,"event_trace_sn":{"coll_start_sn":1,"coll_stop_sn":2,"kernel_events":['
    '{"channel_id":0,"kernel_start_sn":3,"kernel_stop_sn":48,"kernel_record_sn":47}]},"event_trace_ts":{'
    '"coll_start_ts":1752867229235059,"coll_stop_ts":1752867229235064,"kernel_events":[{"channel_id":0,'
    '"kernel_start_ts":1752867229235181,"kernel_stop_ts":1752867229275811,"kernel_record_ts":1752867229275811}'
    "]}}}"
)


def rows_of(writer, rank, pieces=1):
    """The rows of one rank whose file is read in some pieces, and its steps."""
    steps = RankSteps()
    lines = writer.path(rank).read_bytes().splitlines()
    size = -(-len(lines) // pieces)
    found = []
    for start in range(0, len(lines), size):
        found += steps.add([parse(line) for line in lines[start : start + size]])
    return found, steps


def test_the_documented_examples_are_read():
    """The end is that of the last kernel, or the time of the line where there is no trace."""
    plain, trace = parse(PLAIN.encode()), parse(TRACE.encode())

    assert plain.communicator == Communicator("0x7f8c496ae9f661", rank=2, ranks=8, nodes=1)
    assert (plain.function, plain.number, plain.size) == ("AllReduce", 1407, 17179869184)
    assert (plain.stop, plain.seconds) == (1748030377.748202, 0.061974)
    assert trace.stop == 1752867229.275811
    assert trace.start == pytest.approx(1752867229.234754)


def test_a_send_or_receive_is_no_collective():
    """It has a part of another name, and belongs to no sequence."""
    line = json.loads(PLAIN)
    coll = line.pop("coll_perf")
    line["p2p_perf"] = {"p2p": "Send", "p2p_peer": 3, "p2p_sn": 9, "p2p_msg_size_bytes": 7}
    line["p2p_perf"]["p2p_exec_time_us"] = coll["coll_exec_time_us"]

    found = parse(json.dumps(line).encode())

    assert (found.pairwise, found.function, found.number, found.size) == (True, "Send", 9, 7)
    assert found.seconds == 0.061974


@pytest.mark.parametrize("line", [b"{", b"[]", b"{}", b'{"header": {"id": 1}}', b"\xff", b"[" * 5000])
def test_another_line_is_an_error(line):
    """Of one kind, which the reader counts."""
    with pytest.raises(msgspec.MsgspecError):
        parse(line)


@pytest.mark.parametrize(
    "buckets", [(26_214_400,), (26_214_400, 7_340_032), (100_000, 100_000, 8_192), (50_000,) * 4]
)
@pytest.mark.parametrize("verbose", [True, False])
def test_steps_are_the_repetitions_of_the_sequence(tmp_path, buckets, verbose):
    """Of one collective a step, of several, and of equal ones that only time tells apart."""
    writer = Writer(tmp_path, ranks=4, buckets=buckets, verbose=verbose)
    writer.run(60)

    rows, steps = rows_of(writer, 0)

    assert len(rows) >= 40
    assert mean(row["step_seconds"] for row in rows[-20:]) == pytest.approx(1.04, rel=0.02)
    numbers = [row["step"] for row in rows[-20:]]
    assert numbers == list(range(numbers[0], numbers[0] + 20))
    parts = [row["compute_seconds"] + row["wait_seconds"] for row in rows]
    assert parts == pytest.approx([row["step_seconds"] for row in rows])
    assert steps.leader == writer.communicator


@pytest.mark.parametrize("buckets", [(9_000, 10_000, 11_000), (50_000,) * 4])
def test_ranks_agree_on_the_number_of_a_step(tmp_path, buckets):
    """Wherever each file is cut, and whatever small collectives are not written; all end at one moment."""
    writer = Writer(tmp_path, ranks=4, buckets=buckets, slow={2: 1.3}, small=2)
    writer.run(80)

    ends = []
    for rank, pieces in enumerate((1, 7, 13, 80)):
        rows, _ = rows_of(writer, rank, pieces)
        ends.append({row["step"]: row["ts"] for row in rows[-20:]})

    for other in ends[1:]:
        common = ends[0].keys() & other.keys()
        assert len(common) >= 15
        assert [ends[0][step] for step in common] == pytest.approx([other[step] for step in common], abs=1e-3)


def test_the_rank_that_the_others_wait_for_waits_least(tmp_path):
    """It computes longer by its factor, and the others wait by as much."""
    writer = Writer(tmp_path, ranks=4, slow={2: 1.2})
    writer.run(60)

    last = {rank: rows_of(writer, rank)[0][-30:] for rank in range(4)}
    wait = {rank: mean(row["wait_seconds"] for row in rows) for rank, rows in last.items()}
    compute = {rank: mean(row["compute_seconds"] for row in rows) for rank, rows in last.items()}

    assert min(wait, key=wait.__getitem__) == 2
    assert compute[2] == pytest.approx(1.2, rel=0.02)
    assert compute[0] == pytest.approx(1.0, rel=0.02)
    assert wait[0] - wait[2] == pytest.approx(0.2, abs=0.02)


@pytest.mark.parametrize("after", [40, 80])
def test_a_pause_is_one_long_step(tmp_path, after):
    """A checkpoint of half a minute does not change the sequence, in the first steps either."""
    writer = Writer(tmp_path, ranks=2, buckets=(9_000,), pause_after=after)
    writer.run(120)

    rows, steps = rows_of(writer, 0, pieces=30)

    assert steps.changes == 0
    assert sum(row["step_seconds"] > 20 for row in rows) == 1


def test_another_sequence_is_learned_anew(tmp_path):
    """As after DDP has rebuilt its buckets, which it does after the first step, or at another phase."""
    writer = Writer(tmp_path, ranks=2, buckets=(9_000, 10_000))
    writer.run(30)
    writer.buckets = (12_000, 13_000, 14_000)
    writer.run(60)

    rows, steps = rows_of(writer, 0, pieces=90)

    assert steps.changes == 1
    assert mean(row["step_seconds"] for row in rows[-20:]) == pytest.approx(1.04, rel=0.02)
    assert len(rows) >= 60


def test_the_largest_communicator_makes_the_steps(tmp_path):
    """Collectives of a part of the ranks are within them."""
    small, large = (
        Writer(tmp_path / "a", ranks=2, per_node=2, communicator="0x2", buckets=(9_000,)),
        Writer(tmp_path / "b", ranks=4, communicator="0x1"),
    )
    small.run(40)
    large.run(40)
    lines = [line for writer in (small, large) for line in writer.path(0).read_bytes().splitlines()]
    collectives = [parse(line) for line in lines]

    steps = RankSteps()
    rows = steps.add(sorted(collectives, key=lambda one: one.stop))

    assert steps.leader == "0x1"
    assert len(rows) >= 30


def operations(of, *parts):
    """What a rank issues in one communicator, one after the other: (function, bytes, start, stop)."""
    counts: Counter[str] = Counter()
    found = []
    for function, size, start, stop in parts:
        counts[function] += 1
        pairwise = function in ("Send", "Recv")
        found.append(Operation(of, function, counts[function], size, stop - start, stop, pairwise))
    return found


WORLD = Communicator("0xa", rank=3, ranks=16, nodes=2)
TENSOR = Communicator("0xb", rank=1, ranks=8, nodes=1)
STAGES = Communicator("0xc", rank=0, ranks=2, nodes=2)


def all_reduces(steps, start=0.0, of=WORLD, size=50_000):
    return operations(of, *(("AllReduce", size, start + n + 0.9, start + n + 1.0) for n in range(steps)))


def ends(rows):
    return [round(row["ts"]) for row in rows]


@pytest.mark.parametrize("pieces", [1, 40])
def test_steps_go_on_after_an_evaluation(pieces):
    """Its collectives are no steps; one every 50 steps leaves the rows of all others but the first."""
    every = []
    for cycle in range(8):
        every += all_reduces(50, start=100.0 * cycle)
        evaluated = (("AllReduce", 16_384, t, t + 0.1) for t in (100.0 * cycle + 60 + n for n in range(20)))
        every += operations(WORLD, *evaluated)
    steps, rows, size = RankSteps(), [], -(-len(every) // pieces)
    for at in range(0, len(every), size):
        rows += steps.add(every[at : at + size])

    trained = [end for end in ends(rows) if end >= 200]
    assert all(end % 100 in range(1, 51) for end in trained)
    assert len(trained) >= 6 * 48


def test_another_sequence_takes_the_place_of_one_that_stays_away():
    """As when the batch grows; until then it may be an evaluation."""
    steps = RankSteps()
    steps.add(all_reduces(2000))
    rows = steps.add(all_reduces(400, start=2000.0, size=90_000))

    assert ends(rows)[0] > 2000 + LAPSE_SECONDS
    assert ends(rows)[-1] == 2400
    assert steps.changes == 1


def test_small_collectives_now_and_then_interrupt_no_sequence():
    """A loss that is exchanged every tenth step, which Inspector writes where it is set to."""
    steps = RankSteps()
    small = operations(WORLD, *(("AllReduce", 4, n + 1.0, n + 1.01) for n in range(0, 100, 10)))
    rows = steps.add(sorted([*all_reduces(100), *small], key=lambda one: one.stop))

    assert len(rows) == 99
    assert steps.changes == 0


def test_waiting_for_a_neighbour_of_the_pipeline_is_no_compute():
    """Sends and receives count as wait, as collectives do."""
    steps = RankSteps()
    received = operations(STAGES, *(("Recv", 50_000, n + 0.2, n + 0.7) for n in range(40)))
    rows = steps.add(sorted([*all_reduces(40), *received], key=lambda one: one.stop))

    assert len(rows) >= 35
    assert [row["compute_seconds"] for row in rows] == pytest.approx([0.4] * len(rows))
    assert [row["wait_seconds"] for row in rows] == pytest.approx([0.6] * len(rows))


def test_a_step_is_that_of_the_communicator_with_the_longest():
    """The collectives of a tensor-parallel group repeat with each micro-batch, in part of a step."""
    micro = [("AllReduce", 9_000, n + m / 8 + 0.05, n + m / 8 + 0.06) for n in range(60) for m in range(7)]
    every = sorted([*operations(TENSOR, *micro), *all_reduces(60)], key=lambda one: one.stop)
    steps, rows = RankSteps(), []
    for at in range(0, len(every), 5):
        rows += steps.add(every[at : at + 5])

    assert steps.leader == WORLD.id
    assert len(rows) >= 40
    last = rows[-20:]
    assert [row["step_seconds"] for row in last] == pytest.approx([1.0] * 20)
    assert [row["compute_seconds"] for row in last] == pytest.approx([0.83] * 20)


@pytest.mark.parametrize("layers", [6, 40])
def test_a_layer_is_no_step(layers):
    """FSDP gathers each layer in the forward pass, and gathers and reduces it in the backward pass."""
    parts, at = [], 0.0
    for _ in range(60):
        for function in ["AllGather"] * (layers + 1) + ["AllGather", "ReduceScatter"] * (layers - 1):
            parts.append((function, 50_000, at + 0.4 / layers, at + 0.5 / layers))
            at += 0.5 / layers
        parts.append(("ReduceScatter", 50_000, at, at + 0.01))
        at += 0.1
    every, steps, rows = operations(WORLD, *parts), RankSteps(), []
    for start in range(0, len(every), 50):
        rows += steps.add(every[start : start + 50])

    assert len(rows) >= 45
    assert [row["step_seconds"] for row in rows[-40:]] == pytest.approx([at / 60] * 40)
