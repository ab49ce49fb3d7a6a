"""Round trips of the node's busy TCP connections, as the kernel estimates them for each connection."""

import time
from collections.abc import Callable, Iterable, Mapping
from ipaddress import ip_address
from itertools import islice

from exporters.collector import Columns, Instant, Reading
from exporters.host.socket_diag import Connection, connections
from slowrank.telemetry.columns import Value

SENT, RECEIVED = "host.tcp.sent_round_trip_seconds", "host.tcp.received_round_trip_seconds"
_COLUMNS = dict.fromkeys((SENT, RECEIVED), "Linux with tcp_diag, in the network namespace of the job")

# A connection counts in the direction in which it carried as much since the last read: the largest frame that
# Linux hands to a device. Requests, heartbeats and logins carry less, and their round trips hold the pauses
# of programs and delayed acknowledgements.
BUSY_BYTES = 65_536

# Chosen: far above the connections of a training node; a proxy may have more, and the rest is left out.
MAX_CONNECTIONS = 4096

# Chosen: reads take at most so much of a processor; thousands of connections are read every few seconds.
SHARE_OF_TIME = 0.01

# Leading bits that addresses of one site have in common: a /16 of IPv4, and a /48, which a site gets of IPv6
# (RFC 6177).
_SITE_BITS = {4: 16, 16: 48}


class TcpDelayCollector:
    """Read the connections once a tick, or less often where there are thousands.

    Of the local address that carries most, each gauge is the shortest round trip among the busy connections
    of its direction: one that is short shows that the link is not slow, and that a longer one is so for its
    peer or its path. Connections within the node and over the internet are left out. ``near`` decides that.
    """

    name = "tcp_delay"
    columns: Mapping[str, str] = _COLUMNS

    def __init__(
        self,
        read: Callable[[], Iterable[Connection]] = connections,
        *,
        near: Callable[[bytes, bytes], bool] | None = None,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._read, self._near, self._clock = read, near or near_by, clock
        self._before: dict[int, Connection] = {}
        self._next = 0.0
        self._left_out = False

    def collect(self, now: Instant) -> Reading:
        if now.monotonic < self._next:
            return Reading()
        began = self._clock()
        found = self._connections()
        host = self._shortest(found)
        self._before = {c.cookie: c for c in found}
        self._next = now.monotonic + (self._clock() - began) / SHARE_OF_TIME
        return Reading(host=host)

    def metrics(self) -> Mapping[str, float]:
        return {
            "tcp_connections": float(len(self._before)),
            "tcp_connections_left_out": float(self._left_out),
        }

    def close(self) -> None: ...

    def _connections(self) -> list[Connection]:
        try:
            found = list(islice(self._read(), MAX_CONNECTIONS + 1))
        # AttributeError: no AF_NETLINK, as this is not Linux.
        except (OSError, AttributeError):
            found = []
        self._left_out = len(found) > MAX_CONNECTIONS
        return found[:MAX_CONNECTIONS]

    def _shortest(self, found: list[Connection]) -> Columns:
        # Traffic between two addresses of this node passes no link.
        own = {c.local for c in found}
        carried: dict[bytes, int] = {}
        sent: dict[bytes, int] = {}
        received: dict[bytes, int] = {}
        for c in found:
            # How much one carried before it was first read, and when, is not known.
            before = self._before.get(c.cookie)
            if before is None:
                continue
            acked, got = c.acked - before.acked, c.received - before.received
            if max(acked, got) < BUSY_BYTES or c.remote in own or not self._near(c.local, c.remote):
                continue
            carried[c.local] = carried.get(c.local, 0) + acked + got
            if acked >= BUSY_BYTES and c.round_trip:
                sent[c.local] = min(c.round_trip, sent.get(c.local, c.round_trip))
            if got >= BUSY_BYTES and c.receiver_round_trip:
                received[c.local] = min(c.receiver_round_trip, received.get(c.local, c.receiver_round_trip))
        if not carried:
            return {SENT: None, RECEIVED: None}
        most = max(carried, key=lambda local: (carried[local], local))
        return {SENT: _seconds(sent.get(most)), RECEIVED: _seconds(received.get(most))}


def _seconds(microseconds: int | None) -> Value:
    return None if microseconds is None else microseconds / 1e6


def near_by(local: bytes, remote: bytes) -> bool:
    """Return whether ``remote`` is another host of the same site, as far as addresses show.

    >>> near_by(bytes([10, 1, 0, 2]), bytes([10, 9, 0, 7]))
    True
    >>> near_by(bytes([10, 1, 0, 2]), bytes([52, 216, 0, 1]))
    False
    """
    if local == remote or len(local) != len(remote):
        return False
    address = ip_address(remote)
    if address.is_loopback:
        return False
    apart = 8 * len(local) - _SITE_BITS[len(local)]
    return not address.is_global or int(ip_address(local)) >> apart == int(address) >> apart
