"""What is found and stored when something breaks while telemetry of many nodes flows, and how soon.

The same recorded telemetry of 8-GPU nodes at one sample a second (a GPU is lost every 5 s, in every job one
slows down and a port flaps) is sent through Kafka, the workers, TimescaleDB, API and notifier once for each
disturbance. Findings and roll-up rows are held against those of one process that nothing disturbs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from aiokafka.errors import KafkaError
from psycopg import connect

from benchmarks.capacity.installation import Installation, installed
from benchmarks.capacity.load import CLUSTER, UNIT, Load
from benchmarks.chaos.disturbances import DISTURBANCES, Disturbance
from benchmarks.chaos.recovery import Look, behind, recovered_after, worst
from benchmarks.chaos.story import READS, TOPICS, Row, Story, faults, record
from slowrank.telemetry.topics import DEAD_LETTERS
from streams.runtime.faust_app import Role
from streams.runtime.kafka.message import PartitionId
from streams.runtime.kafka.offsets import Probe

# Share of the load after which something breaks: a slow GPU is being found, and a port begins to flap.
ACT_AT = 0.4
# Between GPUs that are lost: what delays findings for so long shows in a webhook.
XID_SECONDS = 5.0
# After the last record was processed: ten seconds later the whole cluster counts as silent.
_UNHEARD_SECONDS = 20.0
# Until the last rows are stored, for which event time has to pass.
_SETTLE_SECONDS = 75.0
_CATCH_UP_SECONDS = 240.0
_LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run; times in seconds, ``None`` where nothing arrived.

    ``acted``: how long the disturbance took. From its beginning on, by role: ``behind`` at most, and until
    that was over (``recovered``). ``webhook_before``, ``webhook_after``: the slowest of those
    that came before the disturbance and since. ``repeated``: records twice in the log, or sent on to
    another partition. ``wrong``: findings and rows that differ from the undisturbed ones.
    """

    name: str
    acted: float
    behind: dict[str, float]
    recovered: dict[str, float]
    webhook_before: float | None
    webhook_after: float | None
    webhooks_missing: int
    repeated: int
    dead_letters: int
    findings: int
    rows: int
    wrong: list[str] = field(default_factory=list)

    @property
    def same(self) -> bool:
        """Whether everything is as if nothing had happened."""
        return not self.wrong and not self.dead_letters and not self.webhooks_missing


def main(argv: list[str]) -> int:
    """Print a table of the disturbances; return 1 when one changed what is found or stored."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks chaos", description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--seconds", type=int, default=240)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--unit", type=int, default=UNIT, help="nodes of a job")
    parser.add_argument("--only", choices=DISTURBANCES, nargs="+", default=list(DISTURBANCES))
    parser.add_argument("--home", help="folder for logs and the recorded load; a temporary one without it")
    parser.add_argument("--json", help="file for the figures")
    options = parser.parse_args(argv)
    if held := [name for name in options.only if options.home and (Path(options.home) / name).exists()]:
        parser.error(f"{options.home} holds the logs of an earlier run ({held[0]}): name another folder")
    load = Load(
        nodes=options.nodes,
        seconds=options.seconds,
        partitions=options.partitions,
        every=XID_SECONDS,
        unit=options.unit,
        faults=faults(options.seconds),
    )
    with tempfile.TemporaryDirectory(prefix="slowrank-chaos-") as folder:
        home = Path(options.home or folder)
        home.mkdir(parents=True, exist_ok=True)
        outcomes = []
        print(f"{load.nodes} nodes, {load.seconds} s\n\n{_HEADING}", flush=True)
        for name in options.only:
            outcomes.append(run(home, load, name))
            _print(outcomes[-1])
    if options.json:
        Path(options.json).write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1) + "\n")
    return int(not all(outcome.same for outcome in outcomes))


def run(home: Path, load: Load, name: str) -> Outcome:
    """Send a load through an installation of its own, disturb it, and return the outcome.

    Raises ``TimeoutError`` when the machine is too slow to prepare it in time.
    """
    # Brokers that are away are part of the plan.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    disturbance, logs = DISTURBANCES[name], home / name
    logs.mkdir()
    # Of this moment: telemetry that is older than a minute is taken for a recording.
    load = replace(load, start=float(int(time.time() + _recording_seconds(load, logs / "load"))))
    story = record(load, logs / "load")
    with installed(logs, load.partitions, disturbance.brokers) as made:
        disturbance.prepare(made)
        if time.time() > load.start:
            raise TimeoutError("recording took longer than its first seconds suggested; run it again")
        load_file, start = str(logs / "load"), str(load.start)
        argv = [sys.executable, "-m", "benchmarks.chaos.send", load_file, made.bootstrap, start]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as sender:
            try:
                outcome = asyncio.run(_Run(made, story, name).watch(sender))
            finally:
                sender.kill()
    (logs / "load").unlink()
    return outcome


def _recording_seconds(load: Load, file: Path) -> float:
    """Return how long recording takes, with a half more and the start of the installation."""
    began, sample = time.monotonic(), 10
    record(replace(load, seconds=sample, start=float(int(time.time()))), file)
    return 1.5 * (time.monotonic() - began) / sample * load.seconds + 60.0


class _Run:
    def __init__(self, made: Installation, story: Story, name: str) -> None:
        self._made, self._story, self._name = made, story, name
        self._probe = Probe(made.bootstrap, "slowrank-detect")
        self._looks: dict[Role, list[Look]] = {role: [] for role in READS}
        self._read: dict[Role, dict[PartitionId, int]] = {role: {} for role in READS}
        self._began = self._acted = 0.0

    async def watch(self, sender: subprocess.Popen[str]) -> Outcome:
        """Disturb, wait until all is processed and settled, and compare."""
        load = self._story.load
        acting = asyncio.create_task(self._disturb(DISTURBANCES[self._name]))
        try:
            while not (await self._look() and sender.poll() is not None and acting.done()):
                if self._now() > load.seconds + _CATCH_UP_SECONDS:
                    break
                await asyncio.sleep(_LOOK_SECONDS)
            await acting
            if sender.poll():
                raise RuntimeError(f"the sender ended with {sender.returncode}")
            ends = await self._ends(TOPICS)
            letters = sum((await self._ends((DEAD_LETTERS,))).values())
        finally:
            acting.cancel()
            await self._probe.close()
        wrong = await asyncio.to_thread(self._settled)
        return self._outcome(wrong, sum(ends.values()) - self._story.records, letters)

    def _now(self) -> float:
        return time.time() - self._story.load.start

    async def _disturb(self, disturbance: Disturbance) -> None:
        await asyncio.sleep(ACT_AT * self._story.load.seconds - self._now())
        self._began = self._now()
        await asyncio.to_thread(disturbance.act, self._made)
        self._acted = self._now() - self._began

    async def _look(self) -> bool:
        """Note how far behind each group is; return whether both have processed all there is."""
        done = False
        # Brokers that do not answer: as far as when they last did.
        with suppress(KafkaError):
            ends = await self._ends(TOPICS)
            left = {}
            for role, topics in READS.items():
                # A broker that has just started does not know them all again.
                for place, offset in (await self._probe.committed(f"slowrank-{role}")).items():
                    if place[0] in topics:
                        self._read[role][place] = max(offset, self._read[role].get(place, 0))
                left[role] = sum(ends[p] - self._read[role].get(p, 0) for p in ends if p[0] in topics)
            enough = all(self._processed(role) >= len(dues) for role, dues in self._story.dues.items())
            done = enough and not any(left.values())
        now = self._now()
        for role, looks in self._looks.items():
            looks.append(Look(now, behind(self._story.dues[role], self._processed(role), now)))
        return done

    def _processed(self, role: Role) -> int:
        return sum(self._read[role].values())

    async def _ends(self, topics: Sequence[str]) -> Mapping[PartitionId, int]:
        return await self._probe.ends(await self._probe.partitions(topics))

    def _settled(self) -> list[str]:
        """Return what differs from the undisturbed run, as texts, once nothing does or time is up."""
        done = time.monotonic()
        while (findings := self._wrong_findings()) and time.monotonic() < done + _UNHEARD_SECONDS:
            time.sleep(1.0)
        while (rows := self._wrong_rows()) and time.monotonic() < done + _SETTLE_SECONDS:
            time.sleep(3.0)
        return findings + rows

    def _wrong_findings(self) -> list[str]:
        with connect(self._made.dsn, autocommit=True) as conn:
            found = conn.execute("SELECT id, doc, status FROM findings WHERE cluster = %s", [CLUSTER])
            stored = {id_: doc | {"status": status} for id_, doc, status in found}
        return differing_findings(self._story.findings, stored)

    def _wrong_rows(self) -> list[str]:
        rows: dict[Row, int] = {}
        with connect(self._made.dsn, autocommit=True) as conn:
            for table in ("samples_10s", "nic_10s", "host_10s"):
                query = f"SELECT node, instance, extract(epoch FROM bucket)::float8, n FROM {table}"
                rows |= {(table, node, name, at): n for node, name, at, n in conn.execute(query)}
            steps = "SELECT job_id, rank::text, extract(epoch FROM bucket)::float8, n_steps FROM steps_10s"
            rows |= {("steps_10s", job, rank, at): n for job, rank, at, n in conn.execute(steps)}
        return differing_rows(self._story.rows, rows)

    def _outcome(self, wrong: list[str], repeated: int, letters: int) -> Outcome:
        load, arrived = self._story.load, self._made.receiver.arrived
        acted_at = load.start + self._began
        delays = [
            (arrived[node] >= acted_at, arrived[node] - at)
            for node, at in load.onsets.items()
            if node in arrived
        ]
        slowest = {since: max((d for s, d in delays if s == since), default=None) for since in (False, True)}
        return Outcome(
            name=self._name,
            acted=round(self._acted, 1),
            behind={role: round(worst(looks, self._began), 1) for role, looks in self._looks.items()},
            recovered={
                role: round(recovered_after(looks, self._began), 1) for role, looks in self._looks.items()
            },
            webhook_before=_rounded(slowest[False]),
            webhook_after=_rounded(slowest[True]),
            webhooks_missing=len(load.onsets) - len(delays),
            repeated=repeated,
            dead_letters=letters,
            findings=len(self._story.findings),
            rows=len(self._story.rows),
            wrong=wrong,
        )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


def differing_findings(
    expected: Mapping[str, Mapping[str, Any]], stored: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Return for each finding that is missing, too many or not the same, what is wrong with it."""
    wrong = []
    for id_ in sorted(expected.keys() | stored.keys()):
        one, other = expected.get(id_), stored.get(id_)
        if one is None or other is None:
            doc = one or other or {}
            wrong.append(f"{'not expected' if one is None else 'missing'}: {_named(doc)}")
        elif fields := [n for n in sorted(one.keys() | other.keys()) if one.get(n) != other.get(n)]:
            wrong.append(
                f"differs: {_named(one)}: "
                + ", ".join(f"{name} {other.get(name)!r} instead of {one.get(name)!r}" for name in fields)
            )
    return wrong


def _named(doc: Mapping[str, Any]) -> str:
    return f"{doc['kind']} ({doc['status']}) {doc['dedup_key']}"


def differing_rows(expected: Mapping[Row, int], stored: Mapping[Row, int]) -> list[str]:
    """Return for each roll-up row with another number of records both numbers."""
    return [
        f"row {' '.join(map(str, key))}: {stored.get(key, 0)} records instead of {expected.get(key, 0)}"
        for key in sorted(expected.keys() | stored.keys())
        if stored.get(key, 0) != expected.get(key, 0)
    ]


_HEADING = (
    "| disturbance | lasts, s | detect behind at most, s | normal after, s | sink behind at most, s | "
    "normal after, s | slowest webhook before, s | after, s | records twice | findings | roll-up rows |\n"
    + "|---" * 11
    + "|"
)
_SHOWN = 20


def _print(outcome: Outcome) -> None:
    rows = sum(text.startswith("row ") for text in outcome.wrong)
    findings = len(outcome.wrong) - rows
    figures = [f"{values[role]}" for role in READS for values in (outcome.behind, outcome.recovered)]
    webhook = f"{outcome.webhook_after}" + f", {outcome.webhooks_missing} missing" * bool(
        outcome.webhooks_missing
    )
    cells = [
        DISTURBANCES[outcome.name].what,
        f"{outcome.acted}",
        *figures,
        f"{outcome.webhook_before}",
        webhook,
        f"{outcome.repeated}",
    ]
    cells += [f"{wrong} of {of:,} differ" if wrong else "the same" for wrong, of in
              ((findings, outcome.findings), (rows, outcome.rows))]  # fmt: skip
    print(f"| {' | '.join(cells)} |", flush=True)
    if outcome.dead_letters:
        print(f"{outcome.dead_letters} dead letters", flush=True)
    for text in outcome.wrong[:_SHOWN]:
        print(f"  {text[:600]}", flush=True)
