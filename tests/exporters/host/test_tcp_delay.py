"""Round trips of busy connections: what the kernel lists in, two gauges out."""

import socket
from dataclasses import replace

import pytest

from exporters.collector import Instant
from exporters.host.socket_diag import Connection, connections
from exporters.host.tcp_delay import BUSY_BYTES, MAX_CONNECTIONS, RECEIVED, SENT, TcpDelayCollector, near_by
from tests.exporters.host.test_socket_diag import pair

HERE, THERE, THIRD, MANAGEMENT = (bytes([10, 78, 0, n]) for n in (2, 3, 4, 99))
FAR = bytes([52, 216, 0, 1])


class Node:
    """The connections of a node, which carry more from one read to the next."""

    def __init__(self) -> None:
        self.held: dict[int, Connection] = {}
        self.collector = TcpDelayCollector(lambda: list(self.held.values()), clock=lambda: 0.0)
        self.ticks = 0

    def carry(self, cookie, *, sent=0, received=0, trip=0, back=0, local=HERE, remote=THERE):
        """Let a connection carry bytes, with round trips in milliseconds."""
        was = self.held.get(cookie)
        total = (was.acked, was.received) if was else (0, 0)
        self.held[cookie] = Connection(
            cookie, local, remote, int(trip * 1e3), int(back * 1e3), total[0] + sent, total[1] + received
        )

    def read(self):
        """Return what is sent and received, in milliseconds."""
        self.ticks += 1
        host = self.collector.collect(Instant(1e9 + self.ticks, float(self.ticks))).host
        return tuple(None if (v := host[name]) is None else round(1e3 * v, 3) for name in (SENT, RECEIVED))


@pytest.fixture
def node():
    """A node that has sent to one peer and received from another."""
    node = Node()
    node.carry(1, sent=1, remote=THERE)
    node.carry(2, received=1, remote=THIRD)
    assert node.read() == (None, None)
    return node


BUSY = 2 * BUSY_BYTES


def test_each_direction_has_that_of_its_connections(node):
    """What one sends to a peer and gets from another."""
    node.carry(1, sent=BUSY, trip=41.2)
    node.carry(2, received=BUSY, back=43.5, remote=THIRD)
    assert node.read() == (41.2, 43.5)


def test_the_shortest_of_a_direction_counts(node):
    """Of several peers one that is near shows that the link is not slow."""
    node.carry(3, remote=THIRD)
    node.carry(4, remote=THERE)
    node.read()
    node.carry(1, sent=BUSY, received=BUSY, trip=41.2, back=50.0)
    node.carry(3, sent=BUSY, trip=0.1, remote=THIRD)
    node.carry(4, received=BUSY, back=1.0)
    assert node.read() == (0.1, 1.0)


@pytest.mark.parametrize(
    "quiet",
    [
        {"sent": BUSY_BYTES - 1, "received": BUSY_BYTES - 1},
        {"sent": 0},
        # Within the node, and over the internet.
        {"sent": BUSY, "received": BUSY, "remote": HERE},
        {"sent": BUSY, "received": BUSY, "remote": FAR},
        {"sent": BUSY, "received": BUSY, "local": bytes([127, 0, 0, 1]), "remote": bytes([127, 0, 0, 2])},
    ],
)
def test_other_connections_do_not_count(quiet):
    """Nothing is said of a node without busy ones."""
    node = Node()
    node.carry(1, **quiet | {"sent": 0, "received": 0})
    node.read()
    node.carry(1, trip=41.2, back=43.5, **quiet)
    assert node.read() == (None, None)


def test_a_new_connection_counts_from_its_second_read():
    """When it carried what it has is not known."""
    node = Node()
    for expected in (None, 41.2):
        node.carry(1, sent=BUSY, trip=41.2)
        assert node.read() == (expected, None)


def test_the_address_that_carries_most_counts(node):
    """Telemetry and storage may go through another network."""
    node.carry(3, local=MANAGEMENT, remote=THERE)
    node.read()
    node.carry(1, sent=2 * BUSY, trip=0.03)
    node.carry(3, sent=BUSY, received=BUSY_BYTES - 1, trip=7.0, back=900.0, local=MANAGEMENT)
    assert node.read() == (0.03, None)


def test_traffic_between_two_addresses_of_the_node_does_not_count(node):
    """It passes no link, and has the shortest round trips."""
    node.carry(3, local=HERE, remote=MANAGEMENT)
    node.carry(4, local=MANAGEMENT, remote=HERE)
    node.read()
    node.carry(1, sent=BUSY, trip=41.2)
    node.carry(3, sent=2 * BUSY, trip=0.04, remote=MANAGEMENT)
    node.carry(4, received=2 * BUSY, back=0.04, local=MANAGEMENT, remote=HERE)
    assert node.read() == (41.2, None)


def test_estimates_that_the_kernel_lacks_are_missing(node):
    """Zero stands for none."""
    node.carry(1, sent=BUSY)
    node.carry(2, received=BUSY, remote=THIRD)
    assert node.read() == (None, None)


@pytest.mark.parametrize("error", [PermissionError, FileNotFoundError, AttributeError, TimeoutError])
def test_a_kernel_that_refuses_gives_nothing(error):
    """A filter of system calls, a kernel without tcp_diag, a system without netlink."""

    def refuse():
        raise error

    collector = TcpDelayCollector(refuse)
    assert collector.collect(Instant(0.0, 0.0)).host == {SENT: None, RECEIVED: None}


def test_of_very_many_connections_some_are_read():
    """And a metric shows that others were not."""

    def listed():
        for number in range(MAX_CONNECTIONS + 1):
            yield Connection(number, HERE, THERE, 1, 1, 0, 0)
        pytest.fail("read on although there are enough")

    collector = TcpDelayCollector(listed)
    collector.collect(Instant(0.0, 0.0))
    assert collector.metrics() == {"tcp_connections": MAX_CONNECTIONS, "tcp_connections_left_out": 1.0}


def test_slow_reads_come_less_often():
    """A read of 40 ms of processor time is followed by none for 4 s."""
    reads = iter([0.0, 0.04, 1.0, 1.0])
    collector = TcpDelayCollector(list, clock=lambda: next(reads))
    read = [bool(collector.collect(Instant(t, t)).host) for t in (10.0, 11.0, 13.9, 14.1)]
    assert read == [True, False, False, True]


def test_a_connection_of_this_host_is_read():
    """From the kernel itself: what one end sends has a round trip, and what the other receives may have."""
    # Both ends are on this host, and what passes no link does not count.
    collector = TcpDelayCollector(
        lambda: (replace(c, remote=THERE) for c in connections()), near=lambda local, remote: True
    )
    with pair() as (one, other):
        collector.collect(Instant(0.0, 0.0))
        one.settimeout(5.0)
        for _ in range(8):
            one.sendall(b"x" * BUSY_BYTES)
            left = BUSY_BYTES
            while left:
                left -= len(other.recv(left))
        host = collector.collect(Instant(1000.0, 1000.0)).host
    assert 0.0 < (host[SENT] or 0.0) < 1.0
    assert 0.0 <= (host[RECEIVED] or 0.0) < 1.0


@pytest.mark.parametrize(
    ("local", "remote", "near"),
    [
        ("10.78.0.2", "10.99.0.3", True),
        ("10.78.0.2", "192.168.0.3", True),
        ("131.220.1.1", "131.220.9.9", True),
        ("131.220.1.1", "131.221.9.9", False),
        ("10.78.0.2", "52.216.0.1", False),
        ("10.78.0.2", "10.78.0.2", False),
        ("127.0.0.1", "127.0.0.2", False),
        ("fd00::1", "fd00:0:7::1", True),
        ("2a00:1:2:3::1", "2a00:1:2:9::1", True),
        ("2a00:1:2:3::1", "2a00:1:3:3::1", False),
        ("fe80::1", "fe80::2", True),
        ("fd00::1", "10.0.0.1", False),
    ],
)
def test_addresses_show_who_is_near(local, remote, near):
    """Private addresses are, and public ones of the same site."""
    raw = [
        socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text) for text in (local, remote)
    ]
    assert near_by(*raw) == near
