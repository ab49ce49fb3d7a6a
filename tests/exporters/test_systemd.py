"""Messages of the exporter to systemd."""

import socket

import pytest

from exporters.systemd import notify_alive


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_notified_when_it_is_up(tmp_path, abstract):
    """READY and the watchdog's sign arrive at a socket with a file and at one without."""
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind("\0" + path if abstract else path)
        notify_alive("@" + path if abstract else path)
        assert systemd.recv(100) == b"READY=1\nWATCHDOG=1"


@pytest.mark.parametrize("address", [None, "", "/nowhere/notify"])
def test_no_listener_is_no_trouble(address):
    """Without systemd, or with one that has gone, nothing happens."""
    notify_alive(address)
