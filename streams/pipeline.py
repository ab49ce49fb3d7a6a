"""The whole topology in one process: records in, findings out.

    NodeSample, NodeEvent ─► NodeStage ─┐
                                        ├─ suspicions ─► FindingStage ─► findings
    JobSteps ──────────────► JobStage ──┘
    NodeSample, JobSteps ──► RollUp ────► rows
    paces, declarations of jobs ─────────► rows

The Faust app drives the same stages with the same watermark, a partition at a time.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from alerts.finding import Finding
from slowrank.telemetry import JobDeclared, JobSteps, NodeEvent, NodeSample, RankPace, Record
from streams.config.settings import Tuning
from streams.config.stages import finding_stage, job_memory, job_stage, node_stage
from streams.job.memory import JobMemory
from streams.job.stage import DEFAULT_MEMORY_BYTES
from streams.node.events.job_events import end_of
from streams.rollup.message_rows import row_of
from streams.rollup.rollup import RollUp, Rows
from streams.stage import Buffering, Output, Restorable, Resumable, Stage
from streams.watermark import Watermark

log = logging.getLogger(__name__)

T = TypeVar("T")


class Pipeline:
    """Drives node, job and finding stage from one stream of records in rough order of event time.

    ``on_rows`` takes the roll-up rows as they close, paces and what jobs declare. A record on which a stage
    raises shows a bug of the stage: it is logged and counted in ``set_aside``, and the stream goes on.
    """

    def __init__(
        self,
        *,
        node: Stage,
        job: Stage,
        finding: Stage,
        on_rows: Callable[[Rows], None] | None = None,
    ) -> None:
        self._stages = {NodeSample: node, NodeEvent: node, JobSteps: job}
        self._tickers = (node, job)
        self._finding = finding
        self._rollup = RollUp() if on_rows is not None else None
        self._on_rows = on_rows
        self._watermark = Watermark()
        self._ends: dict[tuple[str, str], float] = {}
        self.set_aside: Counter[str] = Counter()

    @property
    def time(self) -> float:
        """Event time reached by the records."""
        return self._watermark.time

    @property
    def job_memory(self) -> JobMemory:
        """The memory of the jobs."""
        return job_memory(self._stages[JobSteps])

    def process(self, record: Record) -> list[Finding]:
        """Process one record; return the findings it opened or changed, in order."""
        sender = (record.cluster, record.node)
        if record.ts > self._ends.get(sender, -math.inf):
            self._ends[sender] = record.ts
        # Time advances before the record is processed, as in ``PartitionState.process``: replay and live must
        # have the same order.
        findings = self._pass(self._watermark.advance(record.ts))
        if outputs := self._guarded(self._stages[type(record)].process, record, record):
            findings += self._judge(outputs)
        if isinstance(record, NodeEvent) and (end := end_of(record)) is not None:
            findings += self._judge(self._guarded(self._stages[JobSteps].process, end, end))
        if self._rollup is not None and not isinstance(record, NodeEvent):
            self._emit(self._rollup.add(record))
        return findings

    def snapshot(self) -> Any:
        """Return the state, to be saved before the next record: without settings, and without roll-ups."""
        stages = [stage.snapshot() for stage in self._restorable()]
        return {"stages": stages, "watermark": self._watermark, "ends": self._ends}

    def restore(self, kept: Any) -> None:
        """Take what ``snapshot`` of a pipeline with equal settings returned, after saving and loading."""
        for stage, state in zip(self._restorable(), kept["stages"], strict=True):
            stage.restore(state)
        self._watermark, self._ends = kept["watermark"], kept["ends"]

    def resume(self, event_time: float) -> None:
        """Miss no record of before ``event_time``: what nodes and jobs sent may be lost."""
        for stage in self._tickers:
            if isinstance(stage, Resumable):
                stage.resume(event_time)

    def _restorable(self) -> list[Restorable]:
        stages = (*self._tickers, self._finding)
        found = [stage for stage in stages if isinstance(stage, Restorable)]
        if len(found) < len(stages):
            raise TypeError("a stage of this pipeline gives no snapshots")
        return found

    def suspect(self, suspicions: Sequence[Output]) -> list[Finding]:
        """Process suspicions from outside the stages; return the findings they opened or changed."""
        return self._judge(suspicions)

    def tick(self, event_time: float) -> list[Finding]:
        """Advance event time to ``event_time`` without a record."""
        return self._pass(self._watermark.reach(event_time))

    def finish(self) -> list[Finding]:
        """Advance event time to the end of the stream and close all roll-ups."""
        findings = self.catch_up()
        if self._rollup is not None:
            self._emit(self._rollup.flush())
        return findings

    def catch_up(self) -> list[Finding]:
        """Advance event time to the last records, so that all records count; more may follow.

        Where many nodes send, the end leaves out the latest tenth of them, and at least one: a clock that is
        ahead must not make the other nodes silent. Those that the records have been followed beyond it by,
        since the others ended, are followed to the last but one. Suspicions until the last record count.
        """
        findings: list[Finding] = []
        if self._ends:
            ends = sorted(self._ends.values(), reverse=True)
            end = ends[min(1 + len(ends) // 10, len(ends) - 1)]
            findings = self.tick(math.ceil(end if end >= self.time else self._watermark.latest))
            buffering = [stage for stage in self._tickers if isinstance(stage, Buffering)]
            flushed = [o for s in buffering for o in self._guarded(lambda s: s.flush(), s, s)]
            findings += self._judge(flushed)
            # Suspicions after the last whole second are evaluated, too.
            if flushed or math.ceil(ends[0]) > self._watermark.time:
                findings += _findings(self._ticked(self._finding, math.ceil(ends[0])))
        return findings

    def _pass(self, seconds: Iterable[int]) -> list[Finding]:
        findings: list[Finding] = []
        for second in seconds:
            for stage in self._tickers:
                findings += self._judge(self._ticked(stage, second))
            # Last, so that suspicions of this second are evaluated at it.
            findings += _findings(self._ticked(self._finding, second))
            if self._rollup is not None:
                self._emit(self._rollup.tick(float(second)))
        return findings

    def _judge(self, outputs: Sequence[Output]) -> list[Finding]:
        findings: list[Finding] = []
        for output in outputs:
            if isinstance(output, RankPace | JobDeclared):
                self._emit([row_of(output)])
            if not isinstance(output, Finding):
                findings += _findings(self._guarded(self._finding.process, output, output))
        return findings

    def _ticked(self, stage: Stage, second: int) -> Sequence[Output]:
        return self._guarded(stage.tick, float(second), stage)

    def _emit(self, rows: Rows) -> None:
        if rows and self._on_rows is not None:
            self._on_rows(rows)

    def _guarded(
        self, call: Callable[[T], Sequence[Output]], argument: T, source: object
    ) -> Sequence[Output]:
        try:
            return call(argument)
        except Exception:
            # The supervising loop of the in-process runner: one bad record must not end the stream.
            self.set_aside[type(source).__name__] += 1
            log.exception("a %s was set aside because a stage raised on it", type(source).__name__)
            return ()


def local_pipeline(
    tuning: Tuning | None = None,
    *,
    on_rows: Callable[[Rows], None] | None = None,
    job_memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> Pipeline:
    """Return the pipeline with all stages: what ``up``, ``demo``, ``replay`` and ``backtest`` run."""
    tuning = tuning or Tuning()
    return Pipeline(
        node=node_stage(tuning),
        job=job_stage(tuning, memory_bytes=job_memory_bytes),
        finding=finding_stage(tuning),
        on_rows=on_rows,
    )


def _findings(outputs: Sequence[Output]) -> list[Finding]:
    return [o for o in outputs if isinstance(o, Finding)]
