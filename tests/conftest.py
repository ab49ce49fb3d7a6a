"""Real servers for integration tests: those of `make services`, and private ones for a test to break."""

from __future__ import annotations

import gc
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import psycopg
import pytest
import services
from hypothesis import HealthCheck, settings
from psycopg import sql
from servers.alertmanager import Alertmanager
from servers.kafka import KafkaCluster
from servers.process import ServiceError
from servers.prometheus import Prometheus
from servers.timescale import Timescale

from cli.embedded import postgres

# The same examples in every run, and no verdict on how fast a busy machine tries them.
settings.register_profile(
    "exact", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("exact")

SHARED = {"kafka_bootstrap", "timescale_dsn", "database"}
PRIVATE = {"private_kafka", "private_timescale", "private_alertmanager", "private_prometheus", "promtool"}


def unavailable(reason: str) -> NoReturn:
    """Skip at home, fail where CI is set: a run that silently left out the real servers proves nothing."""
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def connection(variable: str) -> str:
    """The variable's value, or that of the servers which `make services` started in this checkout."""
    value = os.environ.get(variable) or services.exports().get(variable)
    return value or unavailable(f"{variable} is not set and no server runs here: run `make services`")


@pytest.fixture(scope="session")
def kafka_bootstrap() -> str:
    """host:port of a real Kafka shared by the whole run; use topics and groups of your own."""
    return connection("SLOWRANK_TEST_KAFKA")


@pytest.fixture(scope="session")
def timescale_dsn() -> str:
    """Superuser DSN of a real TimescaleDB shared by the whole run; see `database` for one of your own."""
    return connection("SLOWRANK_TEST_DSN")


@pytest.fixture(scope="session")
def plain_server() -> Iterator[str]:
    """DSN of a plain PostgreSQL; its folder is open to all, so that root can give the server to nobody."""
    with tempfile.TemporaryDirectory(prefix="slowrank-tests-") as folder:
        Path(folder).chmod(0o755)
        with postgres.database(Path(folder) / "data", throwaway=True) as dsn:
            yield dsn


@pytest.fixture
def database(timescale_dsn: str) -> Iterator[str]:
    """DSN of a fresh, empty database on the real server, dropped after the test."""
    name = f"t_{secrets.token_hex(6)}"
    with psycopg.connect(timescale_dsn, autocommit=True) as server:
        server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    yield psycopg.conninfo.make_conninfo(timescale_dsn, dbname=name)
    with psycopg.connect(timescale_dsn, autocommit=True) as server:
        server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@contextmanager
def running(server: Any) -> Iterator[Any]:
    """Start a server of the test's own, and close it; without what it needs the test skips or fails."""
    try:
        server.start()
        yield server
    except ServiceError as error:
        unavailable(str(error))
    finally:
        server.close()


@pytest.fixture
def private_kafka() -> Iterator[KafkaCluster]:
    """Three brokers of the test's own, to kill, freeze and restart."""
    with running(KafkaCluster(brokers=3)) as cluster:
        yield cluster


@pytest.fixture
def private_timescale() -> Iterator[Timescale]:
    """A TimescaleDB server of the test's own, to kill, freeze and restart."""
    with running(Timescale()) as server:
        yield server


@pytest.fixture
def private_alertmanager() -> Iterator[Alertmanager]:
    """An Alertmanager of the test's own, without any alerts."""
    with running(Alertmanager()) as server:
        yield server


@pytest.fixture
def promtool() -> Iterator[Callable[..., str]]:
    """Run promtool: ``promtool("check", "rules", "r.yml", files={"r.yml": text})`` returns its output."""
    server = Prometheus()
    try:
        server.promtool("--version")
    except ServiceError as error:
        unavailable(str(error))
    try:
        yield server.promtool
    finally:
        server.close()


@pytest.fixture
def private_prometheus() -> Iterator[Callable[[str], Prometheus]]:
    """Start a Prometheus of the test's own: ``private_prometheus(configuration)``."""
    server = Prometheus()

    def start(config: str) -> Prometheus:
        try:
            server.start(config)
        except ServiceError as error:
            unavailable(str(error))
        return server

    try:
        yield start
    finally:
        server.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever asks for a real server is an integration test; one that starts its own is slow too.

    Slow tests come last: a mistake shows early, and a client that is still giving up a dead broker in the
    background disturbs no other test.
    """
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if fixtures & (SHARED | PRIVATE):
            item.add_marker(pytest.mark.integration)
        if fixtures & PRIVATE:
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many integration tests ran, so that a green run without servers cannot pass for a full one."""
    stats = terminalreporter.stats

    def count(*outcomes: str) -> int:
        reports = [report for outcome in outcomes for report in stats.get(outcome, [])]
        return len({report.nodeid for report in reports if "integration" in getattr(report, "keywords", {})})

    ran, skipped = count("passed", "failed", "error"), count("skipped")
    terminalreporter.write_line(f"integration tests: {ran} ran, {skipped} skipped")


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over the ten thousand tests: walking them took a quarter of the CPU."""
    gc.collect()
    gc.freeze()
