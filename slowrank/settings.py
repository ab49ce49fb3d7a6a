"""Settings of every process: flags > ``SLOWRANK_*`` > ``slowrank.toml`` > the defaults below."""

import ipaddress
import os
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

# A host without colons, or an IPv6 address in brackets.
_ADDRESS = re.compile(r"([^\s:]+|\[[^\s\]]+\]):(?P<port>[0-9]{1,5})")

# Without user, query and quotes: the URL is a label on /metrics.
_METRICS_URL = re.compile(r"https?://[A-Za-z0-9._\[\]:-]+(/[A-Za-z0-9._/-]*)?")

# Without quotes, comments and escapes, so that nothing in it has a meaning for a mail server; RFC 5321 limits
# the part before the @ to 64 characters.
_MAIL_NAME = r"[A-Za-z0-9_+=][A-Za-z0-9._+=-]{0,63}"
_MAIL_DOMAIN = r"[A-Za-z0-9][A-Za-z0-9-]*(\.[A-Za-z0-9][A-Za-z0-9-]*)*"

# Regular expression of a mail address that is taken.
MAIL_ADDRESS = f"{_MAIL_NAME}@{_MAIL_DOMAIN}"

# Time limit of one delivery attempt.
WEBHOOK_ATTEMPT_SECONDS = 15.0
# That, and time to store the result, with some tolerance for the clocks of several notifiers.
_SHORTEST_LEASE_SECONDS = WEBHOOK_ATTEMPT_SECONDS + 5.0


# The tables of ``slowrank.toml`` that tune detectors (streams.config.toml_file); the rest are settings.
TUNING_TABLES = ("detectors", "findings", "clusters", "jobs")


class Settings(BaseSettings):
    """Settings as one flat table; a secret may come from ``SLOWRANK_<NAME>_FILE`` instead."""

    # extra: slowrank.toml also holds the detector tables; unknown names are refused by cli.admin.config.
    # hide_input: an error must not print the value, which may be a password.
    model_config = SettingsConfigDict(
        env_prefix="SLOWRANK_", toml_file="slowrank.toml", extra="ignore", hide_input_in_errors=True
    )

    cluster: str = Field(default="default", min_length=1)
    node: str | None = None
    # Location of the node: failures of nodes with the same rack or switch become one finding.
    rack: str | None = None
    switch: str | None = None

    kafka_bootstrap: str = "127.0.0.1:9092"
    topic_prefix: str = ""
    topic_partitions: int = Field(default=4, ge=1, le=1024)
    topic_replication: int = Field(default=1, ge=1, le=5)

    database_url: SecretStr | None = None
    database_url_file: Path | None = None

    api_host: str = "127.0.0.1"
    api_port: int = Field(default=8080, ge=0, le=65535)
    public_url: str = "http://127.0.0.1:8080"
    # With {kind} in it; empty: those that the API serves.
    runbook_url: str = ""
    api_allowed_hosts: tuple[str, ...] = ()
    api_metrics_public: bool = False
    # Origins whose pages may call the API from a browser, with a key of their own.
    api_cors_origins: tuple[str, ...] = ()
    # Addresses and CIDR blocks whose X-Forwarded-For is trusted.
    api_trusted_proxies: tuple[str, ...] = ()
    # 512 leave half of the usual 1,024 file descriptors to the rest of the process (api.http.connections).
    api_max_connections: int = Field(default=512, ge=16, le=65536)
    # Signs page cursors; required where several API processes share one address.
    api_secret: SecretStr | None = None
    api_secret_file: Path | None = None

    # Address of the /metrics of streams and notifier, which need no key; in a container 0.0.0.0.
    metrics_host: str = "127.0.0.1"

    exporter_interval_seconds: float = Field(default=1.0, gt=0, le=3600)
    # How long a batch waits for more records. At most 2: from 3 s on workers take records for late ones
    # (streams.runtime.partitions.reorder_buffer).
    exporter_linger_seconds: float = Field(default=0.2, ge=0, le=2)
    exporter_spool_dir: Path = Path("/var/lib/slowrank/spool")
    # 256 MiB: some two days of a node at one record of 1.3 kB a second.
    exporter_spool_max_bytes: int = Field(default=256 * 2**20, ge=2**20)
    exporter_listen: str = "127.0.0.1:9311"
    # URLs of metrics in Prometheus' text format, with commas between (exporters.scrape).
    exporter_scrape: str = ""
    # Folders into which NCCL Inspector writes, with commas between (exporters.nccl).
    exporter_nccl: str = ""
    # While it exists, and for ten minutes, the exporter opens no GPU (exporters.nvml.gpu_release).
    exporter_release_file: Path = Path("/run/slowrank/release-gpus")

    # Kafka must retain at least as much (docs/decisions/0003).
    streams_rebuild_minutes: float = Field(default=10.0, gt=0)
    # Memory for all jobs of one partition; measured: a job of 64 GPUs takes 1.6 MiB.
    streams_job_memory_mib: int = Field(default=4096, ge=64)
    streams_stall_seconds: float = Field(default=30.0, gt=0)
    # Age of the oldest message, still growing, at which self.lag opens.
    streams_lag_seconds: float = Field(default=9.0, gt=0)
    # Brokers refuse less than 6 s by default (group.min.session.timeout.ms).
    streams_session_seconds: float = Field(default=30.0, ge=6, le=300)
    streams_runtime_dir: Path = Path(tempfile.gettempdir()) / f"slowrank-{os.getuid()}"
    # Snapshots of the detectors' state; none: in streams_runtime_dir (docs/decisions/0025).
    streams_state_dir: Path | None = None
    # Least time between two snapshots of a partition; 0 = none, and none are read.
    streams_snapshot_seconds: float = Field(default=60.0, ge=0, le=3600)
    # "agent" reads message by message: a way back, should the batches fail (docs/decisions/0020).
    streams_transport: Literal["batch", "agent"] = "batch"
    # Port of /metrics of the detect worker; the sink worker uses the next one; 0 = off.
    streams_metrics_port: int = Field(default=0, ge=0, le=65534)

    webhook_allow_http: tuple[str, ...] = ()
    webhook_allow_private: tuple[str, ...] = ()
    webhook_allow_ports: tuple[Annotated[int, Field(ge=1, le=65535)], ...] = ()
    webhook_ca_file: Path | None = None

    # The mail server of webhooks of the format email; without a host there are none.
    smtp_host: str | None = Field(default=None, pattern=r"^[A-Za-z0-9.:_-]{1,253}$")
    # 587 is that of submission with STARTTLS (RFC 6409), 465 of submission over TLS (RFC 8314).
    smtp_port: int = Field(default=587, ge=1, le=65535)
    smtp_security: Literal["starttls", "tls", "none"] = "starttls"
    smtp_user: str | None = None
    smtp_password: SecretStr | None = None
    smtp_password_file: Path | None = None
    smtp_from: str | None = Field(default=None, pattern=f"^{MAIL_ADDRESS}$", max_length=254)
    # Addresses and domains that webhooks may send mail to; none: the domain of smtp_from.
    smtp_recipients: tuple[
        Annotated[str, Field(pattern=f"^({_MAIL_NAME})?@?{_MAIL_DOMAIN}$", max_length=254)], ...
    ] = ()

    notifier_concurrency: int = Field(default=8, ge=1, le=64)
    notifier_lease_seconds: float = Field(default=60.0, le=3600)
    notifier_poll_seconds: float = Field(default=5.0, ge=0.1, le=60)
    notifier_metrics_port: int = Field(default=9313, ge=0, le=65535)

    gpu_hour_price: float | None = Field(default=None, ge=0)
    retention_rollup_days: int = Field(default=7, ge=1)
    # For findings that never opened. `lemons` and `chronic` look back 28 days by default.
    retention_suspicion_days: int = Field(default=35, ge=3)
    # More than `slowrank chronic` looks back (detectors.fleet.chronic.MAX_DAYS).
    retention_pace_days: int = Field(default=35, ge=2)

    @field_validator("cluster", "node", "rack", "switch")
    @classmethod
    def _one_label(cls, value: str | None) -> str | None:
        # It is part of every record, and a record with an invalid name is refused.
        if value and not re.fullmatch(r"[A-Za-z0-9._:/-]{1,128}", value):
            raise ValueError("must be 1 to 128 of A-Z a-z 0-9 . _ : / -")
        return value

    @field_validator("api_cors_origins")
    @classmethod
    def _origins(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        for value in values:
            # No wildcard: whoever obtains a key could use it from any page that its owner opens.
            if not re.fullmatch(r"https?://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])(:[0-9]{1,5})?", value):
                raise ValueError("must be origins such as https://grafana.example.org, without a path")
        return values

    @field_validator("api_trusted_proxies")
    @classmethod
    def _networks(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        for value in values:
            try:
                ipaddress.ip_network(value, strict=False)
            except ValueError as error:
                raise ValueError(f"must be addresses or CIDR blocks such as 10.0.0.0/8: {error}") from error
        return values

    @field_validator("runbook_url")
    @classmethod
    def _runbooks(cls, value: str) -> str:
        # It becomes a link in alerts.
        if value and not re.fullmatch(r"https?://[^\s{}\"<>]+/[^\s{}\"<>]*\{kind\}[^\s{}\"<>]*", value):
            raise ValueError("must be a URL with {kind} in it, such as https://wiki.example.org/gpu/{kind}")
        return value

    @field_validator("notifier_lease_seconds")
    @classmethod
    def _longer_than_an_attempt(cls, value: float) -> float:
        if not value >= _SHORTEST_LEASE_SECONDS:
            raise ValueError(
                f"must be {_SHORTEST_LEASE_SECONDS:g} or more: one attempt may take "
                f"{WEBHOOK_ATTEMPT_SECONDS:g} s, and when the lease ends before, another notifier sends "
                "the same delivery"
            )
        return value

    @model_validator(mode="after")
    def _complete_mail(self) -> Self:
        if self.smtp_host is not None and self.smtp_from is None:
            raise ValueError("smtp_host needs smtp_from, the address that mails come from")
        has_password = self.smtp_password is not None or self.smtp_password_file is not None
        if (self.smtp_user is not None) != has_password:
            raise ValueError("smtp_user needs smtp_password or smtp_password_file, and they need smtp_user")
        if has_password and self.smtp_security == "none":
            raise ValueError("a password goes over TLS only: set smtp_security to starttls or tls")
        return self

    @field_validator("exporter_scrape")
    @classmethod
    def _urls(cls, value: str) -> str:
        for url in _listed(value):
            if not _METRICS_URL.fullmatch(url):
                raise ValueError("must be URLs such as http://127.0.0.1:9400/metrics, with commas between")
        return value

    @field_validator("kafka_bootstrap")
    @classmethod
    def _addresses(cls, value: str) -> str:
        for part in value.split(","):
            found = _ADDRESS.fullmatch(part.strip())
            if found is None or int(found["port"]) > 65535:
                raise ValueError("must be host:port, or several with commas between")
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    def cursor_key(self) -> bytes | None:
        """Return the key that signs page cursors, or None where none is set."""
        if self.api_secret_file is not None:
            return self.api_secret_file.read_text().strip().encode()
        return self.api_secret.get_secret_value().encode() if self.api_secret else None

    def smtp_login_password(self) -> str | None:
        """Return the password for the mail server, or None where none is set."""
        if self.smtp_password_file is not None:
            return self.smtp_password_file.read_text().strip()
        return self.smtp_password.get_secret_value() if self.smtp_password else None

    def listen_addresses(self) -> list[str]:
        """Return the addresses at which the exporter takes step times; none where the setting is empty."""
        return _listed(self.exporter_listen)

    def scrape_urls(self) -> list[str]:
        """Return the URLs that the exporter scrapes."""
        return _listed(self.exporter_scrape)

    def runbooks(self) -> str:
        """Return the URL of the runbooks with ``{kind}`` in it: the operator's, else those of the API."""
        return self.runbook_url or f"{self.public_url.rstrip('/')}/runbooks/{{kind}}"

    def nccl_folders(self) -> list[str]:
        """Return the folders in which the exporter looks for the files of NCCL Inspector."""
        return _listed(self.exporter_nccl)

    def location_labels(self) -> dict[str, str]:
        """Return the labels for the node's location, without those that are not set."""
        return {name: value for name in ("rack", "switch") if (value := getattr(self, name))}

    @classmethod
    def unknown(cls, names: Iterable[str]) -> list[str]:
        """Return the top-level names of a ``slowrank.toml`` that are neither settings nor tables."""
        return sorted(set(names) - cls.model_fields.keys() - set(TUNING_TABLES))

    def redacted(self) -> dict[str, Any]:
        """Return every value JSON-ready; a secret that is set shows as asterisks."""
        return self.model_dump(mode="json")

    def dsn(self) -> str:
        """Return the database URL. Raises ``ValueError`` naming what to set when there is none."""
        if self.database_url_file is not None:
            try:
                url = self.database_url_file.read_text().strip()
            except OSError as error:
                raise ValueError(
                    f"SLOWRANK_DATABASE_URL_FILE names {self.database_url_file}, which cannot be read "
                    f"({error.strerror}): write the database URL there, or set SLOWRANK_DATABASE_URL"
                ) from error
        elif self.database_url is not None:
            url = self.database_url.get_secret_value()
        else:
            raise ValueError(
                "no database: set SLOWRANK_DATABASE_URL or SLOWRANK_DATABASE_URL_FILE, "
                "or run `slowrank up`, which has its own database"
            )
        if "://" not in url and "=" not in url:
            raise ValueError(
                "SLOWRANK_DATABASE_URL is not a database URL: use postgresql://user:password@host:5432/name"
            )
        return url


def _listed(text: str) -> list[str]:
    """Return the parts of ``text`` between commas, without blanks and empty parts."""
    return [part.strip() for part in text.split(",") if part.strip()]
