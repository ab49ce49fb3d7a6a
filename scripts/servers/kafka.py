"""Apache Kafka in KRaft mode from its Maven artifacts: one broker, or three to lose one."""

from __future__ import annotations

import base64
import hashlib
import secrets
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from servers.debian import ensure_commands
from servers.process import CACHE, ROOT, STATE, Process, Run, ServiceError, free_ports, locked, wait_until

POM = ROOT / "deploy/kafka/pom.xml"
# C1 only: a test's broker lives for minutes, its start matters more than its peak.
JVM = ["-Xms128m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true"]
LOGGING = """\
rootLogger.level = INFO
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d] %p %m (%c)%n
"""


class KafkaCluster:
    """`brokers` Kafka nodes on free ports, each both broker and controller. Nodes count from 1.

    Clients reach them at `host`, an address of this machine; `jvm` sets memory and compilers. stop() keeps
    the data for the next start(); close() deletes it. A shared cluster outlives this process.
    """

    def __init__(
        self, *, brokers: int = 1, shared: bool = False, host: str = "127.0.0.1", jvm: Sequence[str] = JVM
    ) -> None:
        self._host, self._jvm = host, jvm
        # SIGKILL: the data goes with the cluster, and an orderly end takes seconds.
        self._run = Run.begin("kafka", stop_signal=signal.SIGKILL, shared=shared)
        self._directory = STATE / self._run.name
        self._run.paths = [self._directory]
        ports = free_ports(2 * brokers)
        self._ports = {node: (ports[2 * node - 2], ports[2 * node - 1]) for node in range(1, brokers + 1)}
        self._formatted = False

    @property
    def bootstrap(self) -> str:
        """Comma-separated host:port of every broker, whether it runs or not."""
        return ",".join(f"{self._host}:{port}" for port, _ in self._ports.values())

    @property
    def nodes(self) -> list[int]:
        return list(self._ports)

    def __enter__(self) -> KafkaCluster:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start every broker that does not run and wait until all serve requests."""
        install()
        if not self._formatted:
            self._format()
        self._run.exports = {"SLOWRANK_TEST_KAFKA": self.bootstrap}
        down = [node for node in self.nodes if not self.running(node)]
        marks = {node: self._spawn(node) for node in down}
        for node, mark in marks.items():
            self._await(node, mark)

    def stop(self) -> None:
        """Stop all brokers in order; the data stays."""
        for process in self._run.processes.values():
            process.send(signal.SIGTERM)
        for process in self._run.processes.values():
            process.stop(signal.SIGTERM)

    def close(self) -> None:
        """Stop all brokers and delete their data."""
        self._run.end()

    def process(self, node: int) -> Process:
        """The process of one broker that was started."""
        return self._run.processes[str(node)]

    def running(self, node: int) -> bool:
        process = self._run.processes.get(str(node))
        return process is not None and process.alive()

    def kill(self, node: int, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to one broker; after SIGKILL, SIGTERM and SIGINT wait until it is gone."""
        process = self._run.processes[str(node)]
        process.send(number)
        if number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
            wait_until(lambda: not process.alive(), seconds=30, what=f"the end of broker {node}")

    def restart(self, node: int) -> None:
        """Start one broker again on its data and its ports (after stopping it where it still runs)."""
        if self.running(node):
            self._run.processes[str(node)].stop(signal.SIGTERM)
        self._await(node, self._spawn(node))

    def leader_of(self, topic: str, partition: int) -> int:
        """Node id of the partition's leader now (needs kafka-python); -1 while there is none."""
        from kafka import KafkaAdminClient
        from kafka.errors import UnknownBrokerIdError

        alive = [f"{self._host}:{self._ports[node][0]}" for node in self.nodes if self.running(node)]
        client = KafkaAdminClient(bootstrap_servers=alive)
        try:
            (description,) = client.describe_topics([topic])
        except UnknownBrokerIdError:  # the client asked a broker that has just left the cluster
            return -1
        finally:
            client.close()
        indexes = {entry["partition_index"]: int(entry["leader_id"]) for entry in description["partitions"]}
        return indexes.get(partition, -1)

    def log(self, node: int) -> Path:
        return self._directory / f"broker-{node}.log"

    def record_classes(self, target: Path) -> None:
        """Run node 1 once and write the classes it loaded, parsed, to `target` (class-data sharing)."""
        self._format()
        self._await(1, self._spawn(1, f"-XX:ArchiveClassesAtExit={target}"))
        self.stop()

    def _spawn(self, node: int, sharing: str | None = None) -> int:
        """Start one broker; returns the length its log had before."""
        mark = self.log(node).stat().st_size if self.log(node).exists() else 0
        flags = [sharing or f"-XX:SharedArchiveFile={archive()}", f"-Dlog4j2.configurationFile={_logging()}"]
        argv = ["java", *self._jvm, *flags, "-cp", classpath(), "kafka.Kafka", str(self._properties(node))]
        self._run.processes[str(node)] = Process.spawn(argv, log=self.log(node))
        self._run.save()
        return mark

    def _await(self, node: int, mark: int) -> None:
        def started() -> bool:
            text = self.log(node).read_bytes()[mark:]
            if b"Kafka Server started" in text:
                return True
            if not self.running(node):
                raise ServiceError(
                    f"Kafka broker {node} ended while starting:\n{text[-2000:].decode(errors='replace')}"
                )
            return False

        wait_until(started, seconds=60, what=f"starting Kafka broker {node} (log: {self.log(node)})")

    def _properties(self, node: int) -> Path:
        return self._directory / f"broker-{node}.properties"

    def _format(self) -> None:
        """Write each node's settings and format its log directory, all nodes at once."""
        self._directory.mkdir(parents=True)
        cluster_id = (
            base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=").replace("-", "A")
        )  # it must not begin with a dash
        jobs = []
        for node in self.nodes:
            settings = "".join(f"{key}={value}\n" for key, value in self._settings(node).items())
            self._properties(node).write_text(settings)
            tool = [*JVM, "-cp", classpath(), "kafka.tools.StorageTool", "format", "-g", "-t", cluster_id]
            argv = ["java", *tool, "-c", str(self._properties(node))]
            jobs.append(subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        for job in jobs:
            output, _ = job.communicate()
            if job.returncode != 0:
                raise ServiceError(f"formatting Kafka's log directory failed:\n{output[-2000:]}")
        self._formatted = True

    def _settings(self, node: int) -> dict[str, object]:
        port, controller = self._ports[node]
        copies = min(3, len(self._ports))
        in_sync = 2 if copies == 3 else 1
        voters = ",".join(f"{number}@127.0.0.1:{ports[1]}" for number, ports in self._ports.items())
        return {
            "process.roles": "broker,controller",
            "node.id": node,
            "listeners": f"PLAINTEXT://{self._host}:{port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://{self._host}:{port}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.quorum.voters": voters,
            "log.dirs": self._directory / f"broker-{node}",
            "auto.create.topics.enable": "false",
            "num.partitions": 4,
            "default.replication.factor": copies,
            "min.insync.replicas": in_sync,
            # Fewer are made sooner; by default there are 50, in three copies.
            "offsets.topic.num.partitions": 4,
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.num.partitions": 2,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": in_sync,
            "share.coordinator.state.topic.replication.factor": copies,
            "share.coordinator.state.topic.min.isr": in_sync,
            # Tests wait for both: for members that may yet come, and until a killed broker is taken for dead.
            "group.initial.rebalance.delay.ms": 0,
            "broker.heartbeat.interval.ms": 1000,
            "broker.session.timeout.ms": 6000,
            "num.network.threads": 2,
            "num.io.threads": 2,
            # By default 128 MiB, half of this heap.
            "log.cleaner.dedupe.buffer.size": 16777216,
        }


def _home() -> Path:
    return CACHE / f"kafka-{hashlib.sha256(POM.read_bytes()).hexdigest()[:12]}"


def archive() -> Path:
    """The JVM's class-data archive of a started broker: halves the next start."""
    return _home() / "classes.jsa"


def _logging() -> Path:
    return _home() / "log4j2.properties"


def classpath() -> str:
    return ":".join(str(jar) for jar in sorted((_home() / "libs").glob("*.jar")))


def install() -> None:
    """Resolve the jars of POM with Maven and its own settings, once; later calls return at once."""
    with locked("kafka"):
        ensure_commands({"java": "default-jre-headless"})
        # Written last, so that it stands for all the rest.
        if archive().exists():
            return
        ensure_commands({"mvn": "maven"})
        shutil.rmtree(_home(), ignore_errors=True)
        _home().mkdir(parents=True)
        goal = [
            "org.apache.maven.plugins:maven-dependency-plugin:copy-dependencies",
            "-DincludeScope=runtime",
            f"-DoutputDirectory={_home() / 'libs'}",
        ]
        # -C: what does not match its check sum is refused, and not only warned about.
        command = ["mvn", "-q", "-B", "-C", "-f", str(POM), *goal]
        maven = subprocess.run(command, capture_output=True, text=True, check=False)
        if maven.returncode != 0:
            raise ServiceError(f"Maven could not fetch Kafka:\n{maven.stdout[-2000:]}{maven.stderr[-2000:]}")
        _logging().write_text(LOGGING)
        _record_classes()


def _record_classes() -> None:
    """Run a broker once so that its end writes the class-data archive all later ones start from."""
    cluster = KafkaCluster()
    try:
        cluster.record_classes(archive())
    finally:
        cluster.close()
