"""One line of NCCL Inspector's JSON output: one collective, send or receive of one rank.

Format 4.0, plugins/profiler/inspector/README.md of NCCL 2.28 and newer; RCCL's plugin writes the same. Fields
that are not used, and those of later versions, are skipped.
"""

from dataclasses import dataclass

import msgspec

MICROSECONDS = 10**6


@dataclass(frozen=True, slots=True)
class Communicator:
    """A communicator as one of its members sees it: its own ``rank`` among ``ranks`` on ``nodes`` nodes."""

    id: str
    rank: int
    ranks: int
    nodes: int


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation as one rank saw it: ``stop`` in Unix seconds, ``seconds`` from its own arrival to then.

    ``number`` counts the collectives of this function in the communicator and is the same on all its ranks;
    of a send or receive (``pairwise``) it is the process's own. ``seconds`` is waiting for the last rank to
    arrive, and then the transfer. ``pid`` is the process, by its own numbers where it is in a container.
    """

    communicator: Communicator
    function: str
    number: int
    size: int
    seconds: float
    stop: float
    pairwise: bool = False
    pid: int = 0

    @property
    def start(self) -> float:
        """When this rank arrived (Unix s)."""
        return self.stop - self.seconds


class _Header(msgspec.Struct):
    id: str
    rank: int
    n_ranks: int
    nnodes: int = 0


class _Metadata(msgspec.Struct):
    dump_timestamp_us: int
    pid: int = 0


class _KernelTimes(msgspec.Struct):
    kernel_stop_ts: int = 0


class _Times(msgspec.Struct):
    kernel_events: list[_KernelTimes] = []


class _Collective(msgspec.Struct):
    coll: str
    coll_sn: int
    coll_msg_size_bytes: int
    coll_exec_time_us: int
    event_trace_ts: _Times | None = None


class _Pairwise(msgspec.Struct):
    p2p: str
    p2p_sn: int
    p2p_msg_size_bytes: int
    p2p_exec_time_us: int
    event_trace_ts: _Times | None = None


class _Line(msgspec.Struct):
    header: _Header
    metadata: _Metadata
    coll_perf: _Collective | None = None
    p2p_perf: _Pairwise | None = None


_decoder = msgspec.json.Decoder(_Line)


def parse(line: bytes) -> Operation:
    """Return the operation of a line. Raises ``msgspec.MsgspecError``."""
    read = _decoder.decode(line)
    pid = read.metadata.pid
    if (coll := read.coll_perf) is not None:
        what = coll.coll, coll.coll_sn, coll.coll_msg_size_bytes, coll.coll_exec_time_us / MICROSECONDS
        return Operation(_communicator(read), *what, _stop(read, coll.event_trace_ts), pid=pid)
    if (p2p := read.p2p_perf) is not None:
        what = p2p.p2p, p2p.p2p_sn, p2p.p2p_msg_size_bytes, p2p.p2p_exec_time_us / MICROSECONDS
        return Operation(_communicator(read), *what, _stop(read, p2p.event_trace_ts), pairwise=True, pid=pid)
    raise msgspec.ValidationError("neither a collective nor a send or receive")


def _communicator(read: _Line) -> Communicator:
    header = read.header
    return Communicator(header.id, header.rank, header.n_ranks, header.nnodes)


def _stop(read: _Line, times: _Times | None) -> float:
    """Return when the last kernel ended; without the trace the line's own time, which is later by up to the
    interval of the dumps."""
    stops = [kernel.kernel_stop_ts for kernel in (times or _Times()).kernel_events]
    return (max(stops, default=0) or read.metadata.dump_timestamp_us) / MICROSECONDS
