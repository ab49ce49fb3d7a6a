"""Where mail may go: one address an endpoint, in a domain or at an address that the operator lists.

The server that takes the mail is a setting, so an endpoint leads to no other host.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from api.security.ssrf import Refused
from slowrank.settings import MAIL_ADDRESS

# Syntax of the URL of an endpoint that gets mail: one address, no header (RFC 6068 would allow both).
MAILTO_PATTERN = f"^mailto:{MAIL_ADDRESS}$"
# Characters of an address (RFC 5321, erratum 1690).
MAX_ADDRESS = 254


@dataclass(frozen=True, slots=True)
class Recipients:
    """Who may get mail: lower-case addresses and domains."""

    allowed: frozenset[str]

    @classmethod
    def of(cls, allowed: Iterable[str], sender: str) -> "Recipients":
        """Return the recipients of the settings; none listed stands for the sender's own domain."""
        listed = frozenset(entry.lower().lstrip("@") for entry in allowed)
        return cls(listed or frozenset({domain(sender)}))

    def checked(self, url: str) -> str:
        """Return the address of ``mailto:ADDRESS``. Raises ``Refused`` where it may get no mail."""
        address = url.removeprefix("mailto:")
        if not re.fullmatch(MAILTO_PATTERN, url) or len(address) > MAX_ADDRESS:
            raise Refused("the URL of a mail is mailto:NAME@DOMAIN, one address without quotes")
        if not {address.lower(), domain(address)} & self.allowed:
            raise Refused(
                f"{domain(address)} is no domain that mail may go to; SLOWRANK_SMTP_RECIPIENTS allows "
                "domains and addresses"
            )
        return address


def domain(address: str) -> str:
    """Return the domain of an address in lower case."""
    return address.rpartition("@")[2].lower()
