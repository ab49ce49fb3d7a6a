"""The listener for step times: datagrams of the local ranks in, rows by job attempt out.

Sockets are read once a tick without blocking; the kernel's receive buffer is the queue in between. A datagram
that is not valid is dropped and counted, since any process of the node can send here.
"""

import errno
import re
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from exporters.collector import Columns, Instant, Reading, StepRows
from slowrank.telemetry import OpenStep
from slowrank.telemetry.checks import BadRecord
from slowrank.telemetry.columns import Value
from slowrank.telemetry.datagram import (
    MAX_DATAGRAM_BYTES,
    STEP_COLUMNS,
    StepDatagram,
    decode_datagram,
    open_steps,
    step_values,
)

# Bounds on a tick against a flooded socket. Chosen: far above 16 ranks with some steps a second each.
MAX_DATAGRAMS_PER_TICK = 2048
MAX_ROWS_PER_TICK = 16_384
# Senders whose sequence numbers are remembered.
_MAX_RANKS = 4096
# Requested, thousands of datagrams; the kernel grants no more than net.core.rmem_max.
_BUFFER_BYTES = 4 << 20
# Job attempts in one tick. Chosen: a node runs one, or a few that share it.
MAX_ATTEMPTS = 64

Attempt = tuple[str, int, int, tuple[tuple[str, str], ...]]


class StepsCollector:
    """Listen on UDP (``host:port``) and unix datagram sockets (a path) for the training hook.

    ``gpu_uuids`` returns the indices of the node's GPUs by UUID, as far as they have been read, for ranks
    that send a UUID and no index. Raises ``OSError`` when an address cannot be bound.
    """

    name = "steps"
    columns: Mapping[str, str] = dict.fromkeys(STEP_COLUMNS, "a job with the training hook")

    def __init__(
        self, addresses: Iterable[str], gpu_uuids: Callable[[], Mapping[str, int]] = dict[str, int]
    ) -> None:
        self._gpu_uuids = gpu_uuids
        self._paths: dict[Path, int] = {}
        self._sockets: list[socket.socket] = []
        self._rejected: Counter[str] = Counter()
        self._rows_total = 0
        self._rows_dropped = 0
        self._datagrams_lost = 0
        self._seen: dict[tuple[str, int, int], tuple[int, int]] = {}
        try:
            for address in addresses:
                self._sockets.append(self._bind(address))
        except OSError:
            self.close()
            raise

    def collect(self, now: Instant) -> Reading:
        grouped: dict[Attempt, list[Columns]] = {}
        opened: dict[Attempt, list[OpenStep]] = {}
        rows = 0
        for payload in self._payloads():
            try:
                datagram = decode_datagram(payload, now=now.wall)
            except BadRecord as error:
                self._rejected[error.reason] += 1
                continue
            self._account(datagram)
            attempt = _attempt(datagram)
            full = rows + len(datagram.rows) > MAX_ROWS_PER_TICK
            if full or (attempt not in grouped and len(grouped) == MAX_ATTEMPTS):
                self._rows_dropped += len(datagram.rows)
                continue
            rows += len(datagram.rows)
            grouped.setdefault(attempt, []).extend(self._rows(datagram))
            opened.setdefault(attempt, []).extend(open_steps(datagram))
        self._rows_total += rows
        return Reading(
            steps=tuple(
                StepRows(
                    job_id=at[0],
                    attempt=at[1],
                    world_size=at[2],
                    labels=dict(at[3]),
                    rows=tuple(held),
                    open=tuple(opened[at]),
                )
                for at, held in grouped.items()
                if held or opened[at]
            )
        )

    def metrics(self) -> Mapping[str, float]:
        rejected = {f'step_datagrams_rejected_total{{reason="{r}"}}': n for r, n in self._rejected.items()}
        return {
            "step_rows_total": self._rows_total,
            "step_rows_dropped_total": self._rows_dropped,
            "step_datagrams_lost_total": self._datagrams_lost,
            **rejected,
        }

    def close(self) -> None:
        for listening in self._sockets:
            listening.close()
        for path, made in self._paths.items():
            # Another exporter may have made its own there since.
            if _inode(path) == made:
                path.unlink()
        self._sockets, self._paths = [], {}

    def _payloads(self) -> Iterable[bytes]:
        left = MAX_DATAGRAMS_PER_TICK
        for listening in self._sockets:
            while left > 0:
                try:
                    # One byte more, so that a datagram that is too long is detected and not truncated.
                    payload = listening.recv(MAX_DATAGRAM_BYTES + 1)
                except BlockingIOError:
                    break
                except OSError:
                    self._rejected["socket"] += 1
                    break
                left -= 1
                yield payload

    def _rows(self, datagram: StepDatagram) -> list[dict[str, Value]]:
        rows = step_values(datagram)
        if datagram.gpu_index is None and datagram.gpu_uuid is not None:
            index = _index_of(datagram.gpu_uuid, self._gpu_uuids())
            rows = [row | {"gpu_index": index} for row in rows]
        return rows

    def _account(self, datagram: StepDatagram) -> None:
        """Count the datagrams missing since the rank's last one as lost."""
        rank = (datagram.job_id, datagram.attempt or 0, datagram.rank)
        last_seq, last_dropped = self._seen.get(rank, (datagram.seq - 1, 0))
        if datagram.seq > last_seq + 1:
            self._datagrams_lost += datagram.seq - last_seq - 1
        self._rows_dropped += max(0, datagram.dropped - last_dropped)
        if len(self._seen) >= _MAX_RANKS:
            self._seen.clear()
        self._seen[rank] = (datagram.seq, datagram.dropped)

    def _bind(self, address: str) -> socket.socket:
        if address.startswith(("/", "unix:")):
            return self._bind_unix(Path(address.removeprefix("unix:")))
        host, _, port = address.rpartition(":")
        if not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
            raise OSError(f"{address!r:.100} is neither host:port nor the path of a socket")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_DGRAM)
        return _ready(listening, (host.strip("[]"), int(port)))

    def _bind_unix(self, path: Path) -> socket.socket:
        if path.is_socket():
            _remove_dead(path)
        listening = _ready(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM), str(path))
        self._paths[path] = _inode(path)
        # Training jobs run as other users; their input is bounded and checked above.
        path.chmod(0o666)
        return listening


def _remove_dead(path: Path) -> None:
    """Remove the socket of a killed exporter, on which bind() would fail. Raises ``OSError`` if in use."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
        except OSError as error:
            # A socket of another type (EPROTOTYPE), or of another user (EACCES).
            raise OSError(error.errno, f"{error.strerror}: {path} is another program's socket") from error
        else:
            raise OSError(errno.EADDRINUSE, f"{path} is in use: is another exporter running?")


def _inode(path: Path) -> int:
    """Return the inode number of ``path``, 0 where there is nothing."""
    try:
        return path.lstat().st_ino
    except FileNotFoundError:
        return 0


def _ready(listening: socket.socket, address: str | tuple[str, int]) -> socket.socket:
    try:
        listening.setblocking(False)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        listening.bind(address)
    except OSError as error:
        listening.close()
        where = address if isinstance(address, str) else f"{address[0]}:{address[1]} (UDP)"
        raise OSError(error.errno, f"{error.strerror}: {where}") from error
    return listening


def _index_of(uuid: str, indices: Mapping[str, int]) -> int | None:
    """Return the index of the GPU whose UUID begins with ``uuid``, None unless there is exactly one."""
    found = [index for whole, index in indices.items() if whole.lower().startswith(uuid.lower())]
    return found[0] if len(found) == 1 else None


def _attempt(datagram: StepDatagram) -> Attempt:
    labels = tuple(sorted(datagram.labels.items()))
    return datagram.job_id, datagram.attempt or 0, datagram.world_size or 0, labels
