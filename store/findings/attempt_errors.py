"""Errors of attempts to deliver of which the receiver has certainly got nothing, by how their text begins."""

from typing import LiteralString

# Of an address that may not be used, and of a request that cannot be made.
REFUSED: LiteralString = "refused"
NOT_BUILT: LiteralString = "cannot be built"
# Of a mail of which the server has got no more than the sender and the recipient.
NOT_SENT: LiteralString = "not sent"
# These, and the classes that httpx raises while it connects, as a regular expression.
NOTHING_SENT: LiteralString = f"^({REFUSED}|{NOT_BUILT}|{NOT_SENT}|ConnectError|ConnectTimeout):"
