"""Nodes as network namespaces: a management link and a fabric link each, on bridges of their own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Interfaces of a node: for telemetry, and for its training job. Faults of links are made on the second.
MANAGEMENT, FABRIC = "eth0", "eth1"

# Address of Kafka on the management network, in a namespace of its own.
HUB_ADDRESS = "10.77.0.1"


class NotPermitted(RuntimeError):
    """Namespaces cannot be made here; the message gives the reason."""


def check_permitted() -> None:
    """Raise ``NotPermitted`` unless this process may make namespaces and links between them."""
    if os.geteuid() != 0:
        raise NotPermitted("network namespaces need root: run this with sudo, or in a privileged container")
    probe = f"srprobe{os.getpid()}"
    try:
        run("ip", "netns", "add", probe)
        try:
            run("ip", "-n", probe, "link", "add", "bridge0", "type", "bridge")
            run("ip", "-n", probe, "link", "add", "veth0", "type", "veth", "peer", "name", "veth1")
        finally:
            run("ip", "netns", "del", probe)
    except FileNotFoundError as error:
        raise NotPermitted("the command ip is missing: install iproute2") from error
    except subprocess.CalledProcessError as error:
        raise NotPermitted(f"namespaces are not permitted here: {error.stderr.strip()}") from error


def run(*command: str) -> str:
    """Run a command and return its output. Raises ``CalledProcessError`` with what it wrote to stderr."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@contextmanager
def namespace(name: str) -> Iterator[None]:
    """Make a network namespace with its loopback up, and delete it at the end."""
    try:
        # Inside, as a signal may end this process between the two.
        run("ip", "netns", "add", name)
        run("ip", "-n", name, "link", "set", "lo", "up")
        yield
    finally:
        # Its links go with it.
        with suppress(subprocess.CalledProcessError):
            run("ip", "netns", "del", name)


@contextmanager
def bridges() -> Iterator[None]:
    """Make both bridges in the namespace of this process, which must be the hub."""
    for bridge in ("mgmt", "fabric"):
        run("ip", "link", "add", bridge, "type", "bridge")
        run("ip", "link", "set", bridge, "up")
    run("ip", "addr", "add", f"{HUB_ADDRESS}/16", "dev", "mgmt")
    try:
        yield
    finally:
        for bridge in ("mgmt", "fabric"):
            with suppress(subprocess.CalledProcessError):
                run("ip", "link", "del", bridge)


class Node:
    """A node of the rig: the namespace ``name``, the ``number``-th of all clusters.

    ``port`` is the far end of its fabric link, as a switch's port: what is done to it happens to the link.
    """

    def __init__(self, name: str, number: int) -> None:
        self.name, self.number = name, number
        self.namespace = f"sr{os.getpid()}-{number}"
        self.port = f"f{number}"
        self.address = f"10.78.0.{number + 2}"

    @contextmanager
    def up(self) -> Iterator[None]:
        """Make the namespace and its two links."""
        with namespace(self.namespace):
            management = f"m{self.number}"
            for outer, inner, bridge, address in (
                (management, MANAGEMENT, "mgmt", f"10.77.0.{self.number + 2}/16"),
                (self.port, FABRIC, "fabric", f"{self.address}/16"),
            ):
                run("ip", "link", "add", outer, "type", "veth", "peer", inner, "netns", self.namespace)
                run("ip", "link", "set", outer, "master", bridge, "up")
                run("ip", "-n", self.namespace, "addr", "add", address, "dev", inner)
                run("ip", "-n", self.namespace, "link", "set", inner, "up")
            yield

    def command(self, *argv: str) -> list[str]:
        """Return ``argv`` as a command inside the node; it keeps its process id."""
        return ["ip", "netns", "exec", self.namespace, *argv]


@contextmanager
def small_disk(folder: Path, *, kilobytes: int) -> Iterator[None]:
    """Mount a file system of ``kilobytes`` at ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        run("mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "slowrank-rig", str(folder))
        yield
    finally:
        with suppress(subprocess.CalledProcessError):
            run("umount", "-l", str(folder))
