"""Errors of attempts to deliver of which the receiver has certainly got nothing, by how their text begins."""

from typing import LiteralString

# Of an address that may not be used, and of a request that cannot be made.
REFUSED: LiteralString = "refused"
NOT_BUILT: LiteralString = "cannot be built"
# These, and the classes that httpx, asyncio and aiosmtplib raise while they connect, as a regular expression.
NOTHING_SENT: LiteralString = (
    f"^({REFUSED}|{NOT_BUILT}|ConnectError|ConnectTimeout|ConnectionRefusedError|SMTPConnect[A-Za-z]*):"
)
