"""Finds the client's address of a request: the peer's, or the one that a trusted proxy forwards."""

import ipaddress
from collections.abc import Iterable, Sequence

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Return addresses and CIDR blocks as networks. Raises ``ValueError`` with the text that is neither."""
    return tuple(ipaddress.ip_network(text.strip(), strict=False) for text in texts)


def canonical(text: str) -> str:
    """Return an IP address in canonical form, without zone and unmapped from IPv6; empty if invalid."""
    try:
        address = ipaddress.ip_address(text.strip())
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv6Address):
        # Converting through the number drops a zone (%eth0).
        return str(address.ipv4_mapped or ipaddress.IPv6Address(int(address)))
    return str(address)


def is_within(address: str, blocks: Sequence[Network]) -> bool:
    """Return whether an address in its canonical form is in one of ``blocks``."""
    return bool(address) and any(ipaddress.ip_address(address) in block for block in blocks)


def client_address(peer: str, forwarded: Sequence[str], trusted: Sequence[Network]) -> str:
    """Return the address of the client behind ``peer``; empty where the peer has none (a Unix socket).

    ``forwarded`` are the values of ``X-Forwarded-For``, in order. Each proxy appends the address of its own
    peer, so they are read from the end, while the address is a trusted proxy's: entries before that came from
    the client. An entry that is not an address ends the reading.
    """
    address = canonical(peer)
    entries = [entry for value in forwarded for entry in value.split(",")]
    while entries and is_within(address, trusted):
        before = canonical(entries.pop())
        if not before:
            break
        address = before
    return address
