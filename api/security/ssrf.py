"""Server-side request forgery: checks the URL of a webhook and every address it resolves to.

``ipaddress.is_global`` is not enough (it is True for ``64:ff9b::7f00:1``, ``2002:7f00:1::`` and
multicast), so the ranges are listed here. The caller resolves once, calls ``check_addresses`` and connects
to one of those addresses, which defeats DNS rebinding.
"""

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import httpx

from api.http.client_address import Network

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# 9093 is Alertmanager's.
DEFAULT_PORTS = frozenset({80, 443, 8443, 9093})
MAX_URL = 2048
# Syntax of a webhook URL: a host without user name, followed by visible ASCII.
URL_PATTERN = r"^https?://([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?([/?#][!-\[\]-~]*)?$"
# Visible ASCII but the backslash, which one parser reads as a slash and the next does not.
_VISIBLE = re.compile(r"[!-\[\]-~]+")

# Private networks: refused unless the settings allow them.
_PRIVATE = tuple(
    map(
        ipaddress.ip_network,
        (
            "10.0.0.0/8",
            "100.64.0.0/10",
            "127.0.0.0/8",
            "172.16.0.0/12",
            "192.168.0.0/16",
            "198.18.0.0/15",
            "::1/128",
            "fc00::/7",
        ),
    )
)
# Refused regardless of the settings: metadata services, multicast, documentation and reserved ranges, and
# translations that hide an IPv4 address inside global IPv6 space (Teredo in 2001::/23, 6to4 in 2002::/16).
_NEVER = tuple(
    map(
        ipaddress.ip_network,
        (
            "0.0.0.0/8",
            # Azure's platform address: global by its number, and answered by the host of the machine.
            "168.63.129.16/32",
            "169.254.0.0/16",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.88.99.0/24",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/4",
            "240.0.0.0/4",
            "2001::/23",
            "2001:db8::/32",
            "2002::/16",
            "3fff::/20",
            "fd00:ec2::254/128",
        ),
    )
)
# RFC 4291, section 2.4 and the IANA registry: no other IPv6 address is global unicast. Outside are NAT64
# (64:ff9b::/96, 64:ff9b:1::/48), SIIT (::ffff:0:0:0/96), the old ::a.b.c.d, link-local and multicast.
_GLOBAL_V6 = ipaddress.ip_network("2000::/3")


class Refused(ValueError):
    """A destination that the policy forbids.

    The text is for the client and reveals nothing about the internal network; ``why`` is for the log.
    """

    def __init__(self, text: str, why: str = "") -> None:
        super().__init__(text)
        self.why = why or text


def unreachable(host: str, why: str) -> Refused:
    """Return the refusal of a host by its addresses, with the same text for every ``why``.

    The text does not distinguish unknown, private and forbidden names: whoever may add a webhook could
    otherwise map the internal network through its name service.
    """
    return Refused(
        f"{host} has no address that a webhook may reach; the log of the process that looked it up (the API, "
        "the notifier or `slowrank up`) has the reason, and SLOWRANK_WEBHOOK_ALLOW_PRIVATE allows hosts of "
        "one's own network",
        why,
    )


@dataclass(frozen=True, slots=True)
class Policy:
    """Exceptions by the operator; ``allow_private`` holds host names, addresses or CIDR blocks."""

    allow_http: frozenset[str] = frozenset()
    allow_private_hosts: frozenset[str] = frozenset()
    allow_private_networks: tuple[Network, ...] = ()
    ports: frozenset[int] = DEFAULT_PORTS
    own_servers: frozenset[tuple[str, int]] = frozenset()

    @classmethod
    def of(
        cls,
        *,
        allow_http: Iterable[str] = (),
        allow_private: Iterable[str] = (),
        extra_ports: Iterable[int] = (),
        own_servers: Iterable[tuple[str, int]] = (),
    ) -> "Policy":
        """Build a policy from settings as people write them."""
        hosts, networks = set(), []
        for entry in allow_private:
            try:
                networks.append(ipaddress.ip_network(entry, strict=False))
            except ValueError:
                hosts.add(_plain(entry))
        return cls(
            allow_http=frozenset(map(_plain, allow_http)),
            allow_private_hosts=frozenset(hosts),
            allow_private_networks=tuple(networks),
            ports=DEFAULT_PORTS | frozenset(extra_ports),
            own_servers=frozenset((_plain(host), port) for host, port in own_servers),
        )


@dataclass(frozen=True, slots=True)
class Target:
    """A URL that passed ``checked_url``; ``host`` is lower case without brackets or trailing dot."""

    url: httpx.URL
    host: str
    port: int


def checked_url(text: str, policy: Policy) -> Target:
    """Return the target of ``text`` or raise ``Refused``; resolves no name."""
    if len(text) > MAX_URL or not _VISIBLE.fullmatch(text):
        raise Refused(f"a webhook URL is up to {MAX_URL} ASCII characters without spaces or backslashes")
    try:
        url = httpx.URL(text)
        host = _plain(url.host)
        port = {"http": 80, "https": 443}.get(url.scheme, 0) if url.port is None else url.port
    except (httpx.InvalidURL, ValueError, UnicodeError) as error:
        raise Refused(f"this is not a URL: {error}") from error
    if url.scheme not in ("http", "https") or not host or "%" in host:
        raise Refused("a webhook URL looks like https://host/path")
    if url.userinfo:
        raise Refused("put no user name or password into a webhook URL: deliveries are signed instead")
    if url.scheme == "http" and host not in policy.allow_http:
        raise Refused(f"http:// is refused; use https:// or add {host!r} to SLOWRANK_WEBHOOK_ALLOW_HTTP")
    if port not in policy.ports:
        raise Refused(f"port {port} is not in {sorted(policy.ports)}; add it to SLOWRANK_WEBHOOK_ALLOW_PORTS")
    if (host, port) in policy.own_servers:
        raise unreachable(host, f"{host}:{port} is slowrank's own database or Kafka")
    return Target(url.copy_with(fragment=None), host, port)


def check_addresses(target: Target, resolved: Sequence[str], policy: Policy) -> None:
    """Raise ``Refused`` unless there is an address and every one of them is allowed."""
    if not resolved:
        raise unreachable(target.host, f"{target.host} does not resolve to any address")
    for text in resolved:
        _check_address(target, text, policy)


def _check_address(target: Target, text: str, policy: Policy) -> None:
    address = _unwrapped(ipaddress.ip_address(text))
    private = _within(address, _PRIVATE)
    if _within(address, _NEVER) or (address.version == 6 and not private and address not in _GLOBAL_V6):
        raise unreachable(target.host, f"{target.host} resolves to {address}, a range no webhook may reach")
    if private:
        named = target.host in policy.allow_private_hosts or _within(address, policy.allow_private_networks)
        if not named:
            raise unreachable(target.host, f"{target.host} resolves to the private address {address}")


def _unwrapped(address: Address) -> Address:
    if isinstance(address, ipaddress.IPv6Address):
        # Through the number, which leaves a zone (%eth0) behind.
        return address.ipv4_mapped or ipaddress.IPv6Address(int(address))
    return address


def _within(address: Address, networks: Iterable[Network]) -> bool:
    return any(address in network for network in networks)


def _plain(host: str) -> str:
    return host.strip().strip("[]").rstrip(".").lower()
