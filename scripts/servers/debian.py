"""Packages from the Debian mirror this machine already uses: installed, or unpacked into a private root."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from servers.process import ServiceError

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# Not needed by PostgreSQL with jit=off; half of the unpacked size.
UNUSED = ("libllvm", "libz3", "perl", "libperl", "locales_", "libc-l10n", "ssl-cert", "postgresql-common")


def ensure_commands(packages: Mapping[str, str]) -> None:
    """Make every command (key) available, from its Debian package (value) where we may install it."""
    missing = [package for command, package in packages.items() if shutil.which(command) is None]
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise ServiceError(
            f"missing: {', '.join(missing)}. Install them, e.g.: sudo apt-get install {' '.join(missing)}"
        )
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for step in (["update"], ["install", "-y", "--no-install-recommends", *missing]):
        subprocess.run(["apt-get", "-qq", *step], check=True, env=env, stdout=subprocess.DEVNULL)


def mirrors(settings: Path = Path("/etc/apt")) -> list[str]:
    """Archive URIs of this machine's own apt settings, likely main archives first.

    Read from the files: apt itself lists nothing before its first update, as in a fresh container.
    """
    override = os.environ.get("SLOWRANK_DEBIAN_MIRROR")
    if override:
        return [override]
    files = [settings / "sources.list", *sorted((settings / "sources.list.d").glob("*"))]
    text = "\n".join(
        path.read_text() for path in files if path.suffix in (".list", ".sources") and path.exists()
    )
    one_line = re.findall(r"^\s*deb\s+(?:\[[^\]]*\]\s+)?(\S+)", text, re.MULTILINE)
    deb822 = " ".join(re.findall(r"^URIs:(.*(?:\n[ \t].*)*)", text, re.MULTILINE | re.IGNORECASE)).split()
    uris = dict.fromkeys(uri.rstrip("/") for uri in [*one_line, *deb822] if not uri.startswith("cdrom:"))
    return sorted(uris, key=lambda uri: not uri.endswith("/debian"))


def unpack(
    packages: Sequence[str], *, suite: str, into: Path, work: Path, with_dependencies: bool = True
) -> None:
    """Download packages of `suite` and unpack them below `into`, as any user.

    `with_dependencies=False` where `packages` names everything the program needs.
    """
    for part in ("state/lists/partial", "cache/archives/partial", "preferences.d"):
        (work / part).mkdir(parents=True, exist_ok=True)
    (work / "status").touch()
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise ServiceError(
            f"no apt-get and dpkg-deb on this machine to fetch {', '.join(packages)} with; for the database, "
            "point SLOWRANK_TEST_DSN to a TimescaleDB of yours"
        )
    for mirror in mirrors():
        (work / "sources.list").write_text(f"deb [signed-by={KEYRING}] {mirror} {suite} main\n")
        # Error-Mode: without it apt only warns about a mirror that failed, and exits with 0.
        if _apt(work, "update", "-o", "APT::Update::Error-Mode=any") == 0:
            break
    else:
        raise ServiceError(
            f"none of this machine's apt sources serves Debian {suite} signed by {KEYRING}; "
            "set SLOWRANK_DEBIAN_MIRROR to the URI of a Debian archive"
        )
    fetch = ("-y", "--download-only", "install") if with_dependencies else ("download",)
    if _apt(work, *fetch, *packages) != 0:
        raise ServiceError(f"apt-get could not download {', '.join(packages)}; its log is {work / 'apt.log'}")
    _extract(sorted((work / "cache/archives").glob("*.deb")), into)


def _apt(work: Path, *arguments: str) -> int:
    # All paths in our own folder: no lock of the system's apt, no change to the user _apt, no root.
    options = {
        "Dir::Etc::sourcelist": work / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::Etc::preferences": "-",
        "Dir::Etc::preferencesparts": work / "preferences.d",
        "Dir::State": work / "state",
        "Dir::State::status": work / "status",
        "Dir::Cache": work / "cache",
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "",
        "Acquire::Languages": "none",
        "Debug::NoLocking": "1",
    }
    flags = [flag for name, value in options.items() for flag in ("-o", f"{name}={value}")]
    command = ["apt-get", "-qq", *flags, *arguments]
    with (work / "apt.log").open("a") as log:
        # `download` writes where it runs, `install` into the cache.
        here = work / "cache/archives"
        return subprocess.run(command, cwd=here, stdout=log, stderr=log, check=False).returncode


def _extract(archives: Sequence[Path], into: Path) -> None:
    for folder in ("bin", "sbin", "lib", "lib64"):
        (into / "usr" / folder).mkdir(parents=True, exist_ok=True)
        if not (into / folder).exists():
            (into / folder).symlink_to(f"usr/{folder}")
    documents = [f"--exclude=./usr/share/{folder}" for folder in ("doc", "man", "locale")]
    # bin and lib are links into usr; without the flag a package's own folder would replace them.
    untar = ["tar", "-x", "-C", str(into), "--keep-directory-symlink", "--no-same-owner", *documents]
    for archive in archives:
        if archive.name.startswith(UNUSED):
            continue
        files = subprocess.run(
            ["dpkg-deb", "--fsys-tarfile", str(archive)], check=True, stdout=subprocess.PIPE
        )
        subprocess.run(untar, input=files.stdout, check=True)
