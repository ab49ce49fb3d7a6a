"""Established TCP connections as the kernel lists them, and replies that are cut off or odd."""

import contextlib
import errno
import socket
import struct
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporters.host import socket_diag
from exporters.host.socket_diag import connections, parse

SENT = b"x" * 300_000

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's list is Linux's")


@contextlib.contextmanager
def pair(family=socket.AF_INET, host="127.0.0.1"):
    """Both ends of a connection over loopback, of which the first has sent to the second."""
    with socket.socket(family) as listener:
        listener.bind((host, 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()[:2]) as one, listener.accept()[0] as other:
            received = 0
            one.setblocking(False)
            left = memoryview(SENT)
            while received < len(SENT):
                with contextlib.suppress(BlockingIOError):
                    left = left[one.send(left) :]
                received += len(other.recv(1 << 16))
            yield one, other


@contextlib.contextmanager
def listed(family):
    """One reply of the kernel, with at least one connection."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as kernel:
        kernel.settimeout(5.0)
        kernel.send(socket_diag._question(family))
        yield kernel.recv(1 << 16)


@pytest.mark.parametrize(
    ("family", "host"),
    [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"), (socket.AF_INET6, "::ffff:127.0.0.1")],
)
def test_a_connection_is_listed_with_what_it_carried(family, host):
    """Of each end the bytes that it sent or received, and how long its round trips were."""
    try:
        ends = pair(family, host)
        with ends as (one, _):
            found = list(connections())
            address = socket.inet_pton(family, one.getsockname()[0])[-16 if host == "::1" else -4 :]
    except OSError as error:
        if family == socket.AF_INET6 and error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            pytest.skip("no IPv6 here")
        raise
    sends = [c for c in found if c.local == address and len(SENT) <= c.acked <= len(SENT) + 1]
    receives = [c for c in found if c.local == address and c.received == len(SENT)]
    assert len(sends) == len(receives) == 1
    assert 0 < sends[0].round_trip < 1_000_000
    assert sends[0].received == 0
    assert receives[0].acked <= 1
    assert {sends[0].remote, receives[0].remote} == {address}
    assert sends[0].cookie != receives[0].cookie


def test_a_refusal_is_an_error(monkeypatch):
    """The kernel answers a question of a family that it does not have with an error."""
    question = socket_diag._question
    monkeypatch.setattr(socket_diag, "_question", lambda family: question(250))
    with pytest.raises(OSError, match="does not list"):
        list(connections())


def test_a_kernel_without_one_family_lists_the_other(monkeypatch):
    """As one that was started without IPv6."""
    question = socket_diag._question
    monkeypatch.setattr(
        socket_diag, "_question", lambda family: question(250 if family == socket.AF_INET6 else family)
    )
    with pair():
        assert list(connections())


@pytest.mark.parametrize("kind", [2, 3], ids=["error", "done"])
def test_a_list_that_is_broken_off_is_an_error_and_one_that_ends_is_none(kind):
    def message(number):
        return struct.pack("=IHHIIi", 20, kind, 2, 0, 0, number)

    assert parse(message(0)) == ([], False)
    with pytest.raises(OSError, match="does not list") as refused:
        parse(message(-105))
    assert refused.value.errno == 105


@pytest.fixture(scope="module")
def reply():
    with pair(), listed(socket.AF_INET) as held:
        assert parse(held)[0]
        yield held


@given(data=st.data())
def test_what_is_cut_off_is_left_out(reply, data):
    """Whole connections before the cut are read; nothing raises, and no more is asked for for ever."""
    whole, _ = parse(reply)
    cut = data.draw(st.integers(0, len(reply) - 1))
    found, _ = parse(reply[:cut])
    assert found == whole[: len(found)]


@given(data=st.data())
def test_odd_bytes_raise_nothing_but_the_errors_of_the_kernel(reply, data):
    """Sizes that point nowhere, and attributes that are none."""
    changed = bytearray(reply)
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, min(400, len(reply)) - 1))
        changed[at] = data.draw(st.integers(0, 255))
    with contextlib.suppress(OSError):
        parse(bytes(changed))


@given(st.binary(max_size=400))
def test_any_bytes_may_come(odd):
    """As from a kernel that answers something else."""
    with contextlib.suppress(OSError):
        parse(odd)


def test_an_older_kernel_lacks_the_last_numbers():
    """Before Linux 4.1 struct tcp_info has no counts of bytes: such a connection is left out."""
    body = bytes([socket.AF_INET, 1]) + bytes(70) + struct.pack("=HH", 4 + 104, 2) + bytes(104)
    message = struct.pack("=IHHII", 16 + len(body), 20, 2, 0, 0) + body
    assert parse(message) == ([], True), "others may follow"
