"""A webhook reaches public addresses and what the operator named, nothing else."""

import asyncio

import pytest

from api.delivery.webhook_client import resolve
from api.security.ssrf import Policy, Refused, check_addresses, checked_url

NOBODY = Policy.of()

NEVER = [
    "0.0.0.0",
    "168.63.129.16",
    "169.254.169.254",
    "169.254.0.1",
    "192.0.0.8",
    "192.0.2.1",
    "198.51.100.7",
    "203.0.113.9",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::127.0.0.1",
    "::8.8.8.8",
    "::ffff:169.254.169.254",
    "64:ff9b::7f00:1",
    "64:ff9b::8.8.8.8",
    "64:ff9b:1::1",
    "::ffff:0:127.0.0.1",
    "::ffff:0:10.0.0.1",
    "::ffff:0:8.8.8.8",
    "100:0:0:1::1",
    "4000::1",
    "2001:0:53aa:64c:0:fbff:80ff:fffe",
    "2001:db8::1",
    "2002:7f00:1::",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
]
PRIVATE = [
    "10.0.0.1",
    "100.64.0.1",
    "100.127.255.255",
    "127.0.0.1",
    "127.8.8.8",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "198.18.0.1",
    "::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "fc00::1",
    "fd12:3456::1",
]
PUBLIC = ["8.8.8.8", "1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700:4700::1111", "::ffff:8.8.8.8"]


@pytest.mark.parametrize("address", NEVER + PRIVATE)
def test_inner_addresses_are_refused(address):
    """No address of one's own machine, network or metadata service is reached by default."""
    target = checked_url("https://hooks.example.org/x", NOBODY)
    with pytest.raises(Refused) as refused:
        check_addresses(target, [address], NOBODY)
    assert "resolves to" in refused.value.why


@pytest.mark.parametrize("address", NEVER)
def test_some_addresses_are_refused_whatever_the_operator_says(address):
    """Metadata, multicast and disguised addresses stay refused when everything private is allowed."""
    everything = Policy.of(allow_private=["0.0.0.0/0", "::/0", "hooks.example.org"])
    target = checked_url("https://hooks.example.org/x", everything)
    with pytest.raises(Refused) as refused:
        check_addresses(target, [address], everything)
    assert "no webhook may reach" in refused.value.why


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_pass(address):
    """A public address is fine."""
    check_addresses(checked_url("https://hooks.example.org/x", NOBODY), [address], NOBODY)


def test_one_bad_address_among_good_ones_refuses_all():
    """A name with a public and a private address is refused: which one is used could be chosen later."""
    target = checked_url("https://hooks.example.org/x", NOBODY)
    with pytest.raises(Refused) as refused:
        check_addresses(target, ["8.8.8.8", "10.0.0.1"], NOBODY)
    assert "private address 10.0.0.1" in refused.value.why


def test_a_refusal_does_not_tell_what_a_name_resolves_to():
    """Nothing, a private and a forbidden address are refused in one text, which holds no address."""
    target = checked_url("https://hooks.example.org/x", NOBODY)
    texts = set()
    for addresses in ([], ["10.0.0.1"], ["192.168.7.7"], ["169.254.169.254"], ["8.8.8.8", "::1"]):
        with pytest.raises(Refused) as refused:
            check_addresses(target, addresses, NOBODY)
        texts.add(str(refused.value))
    own = Policy.of(own_servers=[("hooks.example.org", 443)])
    with pytest.raises(Refused) as refused:
        checked_url("https://hooks.example.org/x", own)
    (text,) = texts | {str(refused.value)}
    assert text.startswith("hooks.example.org has no address that a webhook may reach")


def test_no_address_is_refused():
    """A name without any address is refused."""
    with pytest.raises(Refused) as refused:
        check_addresses(checked_url("https://hooks.example.org/x", NOBODY), [], NOBODY)
    assert "any address" in refused.value.why


@pytest.mark.parametrize("entry", ["10.0.0.0/8", "10.1.2.3", "alerts.internal"])
@pytest.mark.parametrize("address", ["10.1.2.3", "::ffff:10.1.2.3"])
def test_the_operator_can_name_a_private_place(entry, address):
    """A block, an address or a host name in webhook_allow_private opens exactly that."""
    policy = Policy.of(allow_private=[entry])
    check_addresses(checked_url("https://alerts.internal/x", policy), [address], policy)

    with pytest.raises(Refused):
        check_addresses(checked_url("https://other.internal/x", policy), ["192.168.0.1"], policy)


@pytest.mark.parametrize(
    "host",
    ["0x7f000001", "2130706433", "127.1", "localhost", "127.0.0.1", "[::1]", "[::ffff:7f00:1]"],
)
def test_disguised_loopback_is_refused_once_resolved(host):
    """Every way to write 127.0.0.1 ends at the address check, with the real resolver."""
    target = checked_url(f"https://{host}/x", NOBODY)
    addresses = asyncio.run(resolve(target.host, target.port))
    with pytest.raises(Refused) as refused:
        check_addresses(target, addresses, NOBODY)
    assert "private address" in refused.value.why


@pytest.mark.parametrize(
    "url",
    [
        "",
        "hooks.example.org",
        "//hooks.example.org/x",
        "ftp://hooks.example.org/x",
        "file:///etc/passwd",
        "gopher://127.0.0.1:6379/_x",
        "http://hooks.example.org/x",
        "https://user@hooks.example.org/x",
        "https://user:pw@127.0.0.1/x",
        "https://good.example.org\\@127.0.0.1/",
        "https://good.example.org @127.0.0.1/",
        "https://hooks.example.org/\r\nHost: evil",
        "https://hooks.example.org/\x00",
        "https://hooks.example.org:22/x",
        "https://hooks.example.org:9092/x",
        "https://hooks.example.org:99999/x",
        "https://hooks.example.org:0/x",
        "https://１２７.0.0.1/",
        "https:///x",
        "https://" + "a" * 3000 + ".org/",
        "https://127.0.0.1%2f@evil.org/",
        "https://0177.0.0.1/x",
    ],
)
def test_urls_that_are_no_webhook(url):
    """A URL with another scheme, port, credentials or tricks in it is refused before any resolution."""
    with pytest.raises(Refused):
        checked_url(url, NOBODY)


def test_http_only_where_listed():
    """Plain http goes to a listed host and to no other."""
    policy = Policy.of(allow_http=["Alerts.Internal."])
    assert checked_url("http://alerts.internal/x", policy).port == 80
    with pytest.raises(Refused, match="SLOWRANK_WEBHOOK_ALLOW_HTTP"):
        checked_url("http://other.internal/x", policy)


def test_our_own_servers_are_no_webhook():
    """The hosts of our own database and Kafka are refused by name."""
    policy = Policy.of(own_servers=[("db.internal", 5432)], extra_ports=[5432], allow_private=["10.0.0.0/8"])
    with pytest.raises(Refused) as refused:
        checked_url("https://DB.internal.:5432/x", policy)
    assert "own database" in refused.value.why
    assert checked_url("https://db.internal/x", policy).port == 443
