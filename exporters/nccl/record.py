"""One line of NCCL Inspector's JSON output: one collective of one rank.

Format 4.0, plugins/profiler/inspector/README.md of NCCL 2.28 and newer; RCCL's plugin writes the same. Fields
that are not used, and those of later versions, are skipped.
"""

from dataclasses import dataclass

import msgspec

MICROSECONDS = 10**6


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective as one rank saw it: ``stop`` in Unix seconds, ``seconds`` from its own arrival to then.

    ``number`` counts the collectives of this function in the communicator and is the same on all its ranks;
    ``seconds`` is waiting for the last rank to arrive, and then the transfer.
    """

    communicator: str
    rank: int
    ranks: int
    function: str
    number: int
    size: int
    seconds: float
    stop: float

    @property
    def start(self) -> float:
        """When this rank arrived (Unix s)."""
        return self.stop - self.seconds


class _Header(msgspec.Struct):
    id: str
    rank: int
    n_ranks: int


class _Metadata(msgspec.Struct):
    dump_timestamp_us: int


class _KernelTimes(msgspec.Struct):
    kernel_stop_ts: int = 0


class _Times(msgspec.Struct):
    kernel_events: list[_KernelTimes] = []


class _Performance(msgspec.Struct):
    coll: str
    coll_sn: int
    coll_msg_size_bytes: int
    coll_exec_time_us: int
    event_trace_ts: _Times | None = None


class _Line(msgspec.Struct):
    header: _Header
    metadata: _Metadata
    # Missing in the line of a send or receive.
    coll_perf: _Performance | None = None


_decoder = msgspec.json.Decoder(_Line)


def parse(line: bytes) -> Collective | None:
    """Return the collective of a line, None for a send or receive. Raises ``msgspec.MsgspecError``."""
    read = _decoder.decode(line)
    if read.coll_perf is None:
        return None
    stops = [times.kernel_stop_ts for times in (read.coll_perf.event_trace_ts or _Times()).kernel_events]
    return Collective(
        communicator=read.header.id,
        rank=read.header.rank,
        ranks=read.header.n_ranks,
        function=read.coll_perf.coll,
        number=read.coll_perf.coll_sn,
        size=read.coll_perf.coll_msg_size_bytes,
        seconds=read.coll_perf.coll_exec_time_us / MICROSECONDS,
        # Without the trace the line's own time, which is later by up to the interval of the dumps.
        stop=(max(stops, default=0) or read.metadata.dump_timestamp_us) / MICROSECONDS,
    )
