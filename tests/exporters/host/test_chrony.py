import socket
import struct
import time

import pytest

from exporters.host.chrony import RETRY_SECONDS, ChronyClient, request, seconds_ahead

# Written by chronyd 4.3, to question 77; `chronyc tracking` said "1.999998450 seconds slow of NTP time".
SLOW = bytes.fromhex(
    "060200000021000500000000000000000000004d00000000000000007f0000017f00000100000000000000000000000000010000"
    "000b0000000000006b045eec350c012804fffff3d53aee38d6889781f97d83d0f569d0bc00d59986e0c2fc1cdaf29a390083c12d"
)
LEAP_STATUS = 28 + 4 + 20 + 2


@pytest.fixture
def chronyd():
    """The socket of a chronyd on the loopback address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as served:
        served.bind(("127.0.0.1", 0))
        served.settimeout(5.0)
        yield served


def answer(served, packet=SLOW):
    """Answer the next question with ``packet``, under its number."""
    question, sender = served.recvfrom(1000)
    assert len(question) == len(packet)
    served.sendto(packet[:16] + question[8:12] + packet[20:], sender)


def test_an_offset_is_read_with_its_sign():
    """A clock that chronyd calls slow is behind, which is negative."""
    assert seconds_ahead(SLOW) == pytest.approx(-1.99999845, abs=1e-6)


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        SLOW[:-1],
        request(77),
        bytes([5]) + SLOW[1:],
        SLOW[:8] + b"\0\6" + SLOW[10:],
        SLOW[:LEAP_STATUS] + struct.pack(">H", 3) + SLOW[LEAP_STATUS + 2 :],
    ],
    ids=["empty", "short", "a question", "another version", "refused", "not synchronised"],
)
def test_anything_else_gives_no_offset(packet):
    """Neither what is no answer, nor a chronyd that does not know the time itself."""
    assert seconds_ahead(packet) is None


@pytest.mark.alone
def test_each_tick_reads_the_answer_to_the_last(chronyd):
    """Nothing waits for chronyd, whether it answers or is silent for a tick."""
    client = ChronyClient(chronyd.getsockname())

    assert client.ahead(0.0) is None
    answer(chronyd)
    assert client.ahead(1.0) == pytest.approx(-2.0, abs=1e-5)
    began = time.monotonic()
    assert client.ahead(2.0) is None
    assert time.monotonic() - began < 0.1
    client.close()


def test_an_answer_to_an_older_question_is_not_taken(chronyd):
    """A number that is not the last question's belongs to another question, or comes too late."""
    client = ChronyClient(chronyd.getsockname())
    client.ahead(0.0)
    question, sender = chronyd.recvfrom(1000)

    chronyd.sendto(SLOW, sender)

    assert question[8:12] != SLOW[16:20]
    assert client.ahead(1.0) is None
    client.close()


def test_a_host_without_chronyd_is_asked_again_after_a_while(chronyd):
    """Without a chronyd no error is raised; a chronyd that is started later is found."""
    address = chronyd.getsockname()
    chronyd.close()
    client = ChronyClient(address)

    assert [client.ahead(float(tick)) for tick in range(5)] == [None] * 5

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as later:
        later.bind(address)
        later.settimeout(5.0)
        client.ahead(RETRY_SECONDS + 5.0)
        answer(later)
        assert client.ahead(RETRY_SECONDS + 6.0) == pytest.approx(-2.0, abs=1e-5)
    client.close()
