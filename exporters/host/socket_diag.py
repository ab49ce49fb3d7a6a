"""Established TCP connections of this network namespace, as the kernel lists them (sock_diag(7)).

Only their numbers are read: no data, and no process is named. No privileges are needed.
"""

import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

# linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h and the states of net/tcp_states.h.
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY = 4, 20
_REQUEST, _DUMP = 0x1, 0x300
_ERROR, _DONE = 2, 3
_ESTABLISHED = 1
_INFO = 2
_NETLINK = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
# Family, protocol, attributes wanted, padding, states; a socket of zeros is any.
_WANTED = struct.Struct("=BBBxI48x")
# Family, then from the socket's identity both addresses and the cookie; the rest is not read.
_SOCKET = struct.Struct("=B7x16s16s4xQ20x")
# Of struct tcp_info (linux/tcp.h) rtt, rcv_rtt, bytes_acked and bytes_received; kernels append to it.
_TCP_INFO = struct.Struct("=68xI20xI24xQQ")

_MAPPED = bytes(10) + b"\xff\xff"
# What the kernel fills at most in one reply.
_BUFFER_BYTES = 1 << 16
# The kernel answers at once; a filter of system calls may swallow the question.
_WAIT_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Connection:
    """One connection: addresses of 4 or 16 bytes, and the kernel's estimates in microseconds (0: none yet).

    ``round_trip`` is from data to its acknowledgement, ``receiver_round_trip`` from an acknowledgement to the
    data that answers it. ``acked`` and ``received`` count bytes. ``cookie`` is unique until the next boot.
    """

    cookie: int
    local: bytes
    remote: bytes
    round_trip: int
    receiver_round_trip: int
    acked: int
    received: int


def connections() -> Iterator[Connection]:
    """Yield the established connections over IPv4 and IPv6; raises ``OSError`` where the kernel refuses
    both: it may have been started without one of them."""
    refused: list[OSError] = []
    for family in (socket.AF_INET, socket.AF_INET6):
        some = False
        try:
            for connection in _connections_over(family):
                some = True
                yield connection
        except OSError as error:
            if some:
                raise  # a list that was broken off
            refused.append(error)
    if len(refused) > 1:
        raise refused[0]


def _connections_over(family: int) -> Iterator[Connection]:
    # One for each: replies that were not read when the caller had enough go with it.
    with closing(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)) as kernel:
        kernel.settimeout(_WAIT_SECONDS)
        kernel.send(_question(family))
        more = True
        while more:
            reply = kernel.recv(_BUFFER_BYTES)
            found, more = parse(reply)
            yield from found


def _question(family: int) -> bytes:
    wanted = _WANTED.pack(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), 1 << _ESTABLISHED)
    size = _NETLINK.size + len(wanted)
    return _NETLINK.pack(size, _SOCK_DIAG_BY_FAMILY, _REQUEST | _DUMP, 0, 0) + wanted


def parse(reply: bytes) -> tuple[list[Connection], bool]:
    """Return the connections of one reply, and whether another follows.

    Raises ``OSError`` with the error that the kernel reports. What is cut off or malformed is left out, and
    ends the replies.
    """
    found, listed, at = list[Connection](), False, 0
    while at + _NETLINK.size <= len(reply):
        size, kind, _, _, _ = _NETLINK.unpack_from(reply, at)
        body = reply[at + _NETLINK.size : at + size]
        if size < _NETLINK.size or at + size > len(reply):
            return found, False
        # The end has an error too, of a list that was broken off.
        number = -int.from_bytes(body[:4], sys.byteorder, signed=True) if kind in (_ERROR, _DONE) else 0
        if number:
            raise OSError(number, "the kernel does not list its sockets")
        if kind in (_ERROR, _DONE):
            return found, False
        if kind == _SOCK_DIAG_BY_FAMILY:
            # Some have no numbers, and others may follow.
            listed = True
            if (connection := _connection(body)) is not None:
                found.append(connection)
        at += _aligned(size)
    return found, listed


def _connection(body: bytes) -> Connection | None:
    info = _attribute(body, _INFO)
    if info is None or len(info) < _TCP_INFO.size:
        return None
    family, local, remote, cookie = _SOCKET.unpack_from(body)
    numbers = _TCP_INFO.unpack_from(info)
    return Connection(cookie, _address(family, local), _address(family, remote), *numbers)


def _address(family: int, raw: bytes) -> bytes:
    if family == socket.AF_INET:
        return raw[:4]
    # IPv4 over a socket of IPv6.
    return raw[12:] if raw.startswith(_MAPPED) else raw


def _attribute(body: bytes, wanted: int) -> bytes | None:
    at = _SOCKET.size
    while at + _ATTRIBUTE.size <= len(body):
        size, kind = _ATTRIBUTE.unpack_from(body, at)
        if size < _ATTRIBUTE.size:
            return None
        if kind == wanted:
            return body[at + _ATTRIBUTE.size : at + size]
        at += _aligned(size)
    return None


def _aligned(size: int) -> int:
    """Netlink pads messages and attributes to four bytes."""
    return (size + 3) & ~3
