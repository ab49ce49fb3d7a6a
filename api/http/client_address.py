"""From which address a request comes: the peer's, or the one that a trusted proxy forwards."""

import ipaddress
from collections.abc import Iterable, Sequence

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Return addresses and CIDR blocks as networks. Raises ``ValueError`` naming what is neither."""
    return tuple(ipaddress.ip_network(text.strip(), strict=False) for text in texts)


def canonical(text: str) -> str:
    """Return an IP address in its one form, without zone and not mapped into IPv6; empty if it is none."""
    try:
        address = ipaddress.ip_address(text.strip())
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv6Address):
        # Through the number, which leaves a zone (%eth0) behind.
        return str(address.ipv4_mapped or ipaddress.IPv6Address(int(address)))
    return str(address)


def is_within(address: str, blocks: Sequence[Network]) -> bool:
    """Return whether an address in its canonical form is in one of ``blocks``."""
    return bool(address) and any(ipaddress.ip_address(address) in block for block in blocks)


def client_address(peer: str, forwarded: Sequence[str], trusted: Sequence[Network]) -> str:
    """Return the address of the client behind ``peer``; empty where the peer has none (a Unix socket).

    ``forwarded`` are the values of ``X-Forwarded-For``, in order. Each proxy appends the address it was
    asked from, so they are read from the end, and only as far as the proxies are trusted: what stands before
    came from the client. An entry that is no address ends the reading.
    """
    address = canonical(peer)
    entries = [entry for value in forwarded for entry in value.split(",")]
    while entries and is_within(address, trusted):
        before = canonical(entries.pop())
        if not before:
            break
        address = before
    return address
