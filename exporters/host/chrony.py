"""Query chronyd for the clock offset of this host: one datagram each way on the loopback address.

The packets are those of ``chronyc tracking`` (chrony's ``candm.h``, protocol version 6), which chronyd
answers to any local user. Tested with chronyd 4.3.
"""

import contextlib
import socket
import struct

# Of chrony's ``candm.h``: port, protocol version, types of packets, the command and its reply, success.
PORT = 323
_VERSION = 6
_REQUEST, _REPLY = 1, 2
_TRACKING, _TRACKING_REPLY = 33, 5
_SUCCESS = 0
# A request must be as long as its reply, so that the protocol cannot amplify traffic.
_PACKET_BYTES = 104
_HEAD = struct.Struct(">BBBBHHHHHHIII")
# Reference, its address, stratum, leap status, time of the reference, then seven of chrony's own floats.
_TRACKING_BODY = struct.Struct(">I20sHHIIIIIIIIIII")
_NOT_SYNCHRONISED = 3
# Seconds until a port without a listener is tried again. Chosen: a service is seldom started later.
RETRY_SECONDS = 60.0


class ChronyClient:
    """Query chronyd at ``address`` once a tick without waiting: a tick reads the reply to the last query."""

    def __init__(self, address: tuple[str, int] = ("127.0.0.1", PORT)) -> None:
        self._address = address
        self._socket: socket.socket | None = None
        self._sequence = 0
        self._retry_at = 0.0

    def ahead(self, monotonic: float) -> float | None:
        """Return by how many seconds the clock was ahead a tick ago, None where chronyd does not answer.

        Does not raise; without a listener the next query is after ``RETRY_SECONDS``.
        """
        if monotonic < self._retry_at:
            return None
        try:
            answers = self._answers()
            self._ask()
        except OSError:
            self.close()
            self._retry_at = monotonic + RETRY_SECONDS
            return None
        return answers[-1] if answers else None

    def close(self) -> None:
        """Close the socket; the next query opens another."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _answers(self) -> list[float | None]:
        if self._socket is None:
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
            # A connected socket receives datagrams of this peer only, and reports a missing listener.
            self._socket.connect(self._address)
            return []
        answers: list[float | None] = []
        with contextlib.suppress(BlockingIOError):
            while True:
                packet = self._socket.recv(2 * _PACKET_BYTES)
                if _sequence_of(packet) == self._sequence:
                    answers.append(seconds_ahead(packet))
        return answers

    def _ask(self) -> None:
        assert self._socket is not None
        self._sequence = (self._sequence + 1) % 2**32
        self._socket.send(request(self._sequence))


def request(sequence: int) -> bytes:
    """Return the request for the tracking data with a sequence number, which the reply repeats."""
    head = struct.pack(">BBBBHHIII", _VERSION, _REQUEST, 0, 0, _TRACKING, 0, sequence, 0, 0)
    return head.ljust(_PACKET_BYTES, b"\0")


def seconds_ahead(packet: bytes) -> float | None:
    """Return how far the clock is ahead of chronyd's estimate of the time (seconds, behind is negative).

    None where ``packet`` is no reply to ``request``, or where chronyd itself is not synchronised.
    """
    if len(packet) < _PACKET_BYTES:
        return None
    version, kind, _, _, command, reply, status, *_ = _HEAD.unpack_from(packet)
    if (version, kind, command, reply, status) != (_VERSION, _REPLY, _TRACKING, _TRACKING_REPLY, _SUCCESS):
        return None
    _, _, _, leap, _, _, _, correction, *_ = _TRACKING_BODY.unpack_from(packet, _HEAD.size)
    # The correction is still to be added: it is positive where the clock is behind.
    return None if leap == _NOT_SYNCHRONISED else -_chrony_float(correction)


def _sequence_of(packet: bytes) -> int | None:
    return _HEAD.unpack_from(packet)[10] if len(packet) >= _HEAD.size else None


def _chrony_float(bits: int) -> float:
    """Decode chrony's own float: 7 bits of exponent and 25 of coefficient, both in two's complement."""
    exponent, coefficient = bits >> 25, bits & (2**25 - 1)
    exponent -= 2**7 if exponent >= 2**6 else 0
    coefficient -= 2**25 if coefficient >= 2**24 else 0
    return float(coefficient * 2.0 ** (exponent - 25))
