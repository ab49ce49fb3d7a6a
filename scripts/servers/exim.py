"""Exim, a mail server, from Debian's package: takes mail over STARTTLS after a login, keeps it as files."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

from servers.debian_program import DebianProgram
from servers.process import Process, ServiceError, wait_until

PACKAGES = ("exim4-daemon-light",)
USER, PASSWORD = "slowrank", "s3cret pass"
# The user as whom Exim handles mail (uid 101 of Debian's package).
_UID, _GID = 101, 103
_PASSWD = f"root:x:0:0::/:/bin/sh\nDebian-exim:x:{_UID}:{_GID}::/:/bin/false\n"
_GROUP = f"root:x:0:\nDebian-exim:x:{_GID}:\n"
# Nothing is sent on: mail for oncall@example.org becomes a file, all other is refused.
_CONFIG = """
primary_hostname = localhost
local_interfaces = 127.0.0.1
daemon_smtp_ports = {port}
spool_directory = {home}/spool
log_file_path = {home}/%slog
pid_file_path = {home}/pid
keep_environment =
tls_certificate = {home}/server.pem
tls_privatekey = {home}/server.pem
tls_advertise_hosts = *
acl_smtp_rcpt = rcpt
acl_smtp_data = data
host_lookup =
begin acl
rcpt:
  deny !encrypted = *
       message = TLS only
  deny !authenticated = *
       message = log in first
  accept domains = example.org
         local_parts = oncall
  deny message = no such user
data:
  deny !verify = header_syntax
  accept
begin routers
all:
  driver = accept
  transport = file
begin transports
file:
  driver = appendfile
  directory = {home}/mail
  maildir_format
  user = Debian-exim
  group = Debian-exim
begin authenticators
plain:
  driver = plaintext
  public_name = PLAIN
  server_prompts = :
  server_condition = ${{if and {{{{eq{{$auth2}}{{{user}}}}}{{eq{{$auth3}}{{{password}}}}}}}}}
"""


class Exim(DebianProgram):
    """One Exim on a free loopback port; ``pem`` holds key and certificate for localhost."""

    with_dependencies = True

    def __init__(self, pem: Path) -> None:
        super().__init__("exim", PACKAGES)
        self._pem = pem

    def start(self) -> None:
        """Start the server and wait until it answers. Raises ``ServiceError`` where it cannot."""
        if os.geteuid() != 0:
            raise ServiceError("Exim changes to a user of its own, which needs root")
        config = _CONFIG.format(port=self.port, home=self.home, user=USER, password=PASSWORD)
        path = self.write("exim.conf", config)
        self.write("server.pem", self._pem.read_text())
        for name, text in (("passwd", _PASSWD), ("group", _GROUP)):
            (self._tree / "etc" / name).write_text(text)
        for name in ("spool", "mail"):
            (self._folder / name).mkdir()
        # Exim takes no configuration that others may write; the rest it writes and reads as its own user.
        for entry in (self._folder, *self._folder.iterdir()):
            if entry.name != "exim.conf":
                shutil.chown(entry, _UID, _GID)
        argv = self.command("/usr/sbin/exim4", "-C", path, "-bdf")
        self._run.processes["exim"] = Process.spawn(argv, log=self._log)
        self._run.save()
        wait_until(self._ready, seconds=20, what=f"starting Exim (log: {self._log})")

    def mails(self) -> list[bytes]:
        """Return the mails that were delivered, oldest first."""
        found = sorted((self._folder / "mail").glob("new/*"), key=lambda path: path.stat().st_mtime_ns)
        return [path.read_bytes() for path in found]

    def _ready(self) -> bool:
        if not self._run.processes["exim"].alive():
            raise ServiceError(f"Exim ended while starting:\n{self._log.read_text()[-2000:]}")
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
                return connection.recv(4) == b"220 "
        except OSError:
            return False
