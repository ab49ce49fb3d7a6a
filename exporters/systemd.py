"""Readiness and watchdog messages to systemd (``Type=notify``, ``WatchdogSec``)."""

import contextlib
import socket

ALIVE = b"READY=1\nWATCHDOG=1"


def notify_alive(address: str | None) -> None:
    """Report to the datagram socket ``address`` (NOTIFY_SOCKET), if any, that this process works.

    Errors are ignored: telemetry must not depend on systemd.
    """
    if not address:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        # An @ stands for the zero byte that begins the name of an abstract socket.
        sender.sendto(ALIVE, "\0" + address[1:] if address.startswith("@") else address)
