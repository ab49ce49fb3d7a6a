"""Signs of life to systemd, where it asks for them (``Type=notify``, ``WatchdogSec``)."""

import contextlib
import socket

ALIVE = b"READY=1\nWATCHDOG=1"


def tell_alive(address: str | None) -> None:
    """Report that this process is up and works, to the datagram socket ``address`` (NOTIFY_SOCKET), if any.

    A systemd that does not listen is its own affair; telemetry goes on.
    """
    if not address:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        # An @ stands for the zero byte that begins the name of a socket without a file.
        sender.sendto(ALIVE, "\0" + address[1:] if address.startswith("@") else address)
