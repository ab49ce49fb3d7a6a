"""Run one scenario: simulate its records, process them in a local pipeline, collect findings as alarms."""

from dataclasses import dataclass, field

from benchmarks.quality.baselines.catalogue import BASELINES, alarms_of
from benchmarks.quality.baselines.job_arrays import Recorder
from benchmarks.quality.columns import without
from benchmarks.quality.scenarios.quiet import node_days
from benchmarks.quality.scenarios.scenario import Scenario, domains_of, events_of
from benchmarks.quality.scoring.alarms import AlarmLog
from benchmarks.quality.scoring.matching import Alarm, Event
from simulator import Cluster, ClusterSpec
from slowrank.telemetry import JobSteps, NodeSample
from slowrank.telemetry.schema import STEP_SCHEMAS
from streams.pipeline import local_pipeline

OURS = "slowrank"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of one scenario: everything the tables need, one line of the results file.

    ``alarms`` are by detector, ``expected`` are the right kinds by job, ``job_of`` is by node. ``set_aside``
    counts records on which a stage raised: none is allowed. Where all benign rows are on, ``benign`` is the
    row of each job, and ``row_days`` the node-days of each row. Columns in ``without`` were missing in every
    sample.
    """

    part: str
    row: str
    seed: int
    nodes: int
    seconds: float
    tick_seconds: float
    rank_steps: int
    events: tuple[Event, ...]
    alarms: dict[str, tuple[Alarm, ...]]
    expected: dict[str, tuple[str, ...]]
    job_of: dict[str, str]
    set_aside: int = 0
    benign: dict[str, str] = field(default_factory=dict)
    row_days: dict[str, float] = field(default_factory=dict)
    without: tuple[str, ...] = ()

    @property
    def node_days(self) -> float:
        """Simulated time of all nodes together."""
        return self.nodes * self.seconds / 86_400.0


def run(scenario: Scenario) -> Outcome:
    """Simulate a scenario and run the product and the baselines on the same records."""
    cluster = Cluster(scenario.spec, seed=scenario.seed, faults=scenario.faults)
    # The baselines cannot run without one of their metrics.
    compared = scenario.compared and not scenario.without
    recorder = Recorder(scenario.spec.send_seconds) if compared else None
    pipeline, log, rank_steps, now = local_pipeline(), AlarmLog(domains_of(scenario.spec)), 0, 0.0
    astray = {scenario.spec.node_name(f.node) for f in scenario.faults if f.kind == "clock_skew"}
    for record in cluster.run(scenario.seconds):
        if scenario.steps_alone and not isinstance(record, JobSteps):
            continue
        if scenario.without and isinstance(record, NodeSample):
            record = without(record, scenario.without)
        # Time stamps of a node with a fast clock do not show when its records arrived.
        now = now if record.node in astray else max(now, record.ts)
        if isinstance(record, JobSteps):
            rank_steps += len(record.rows) // STEP_SCHEMAS[record.schema].rows.row_size
        if recorder is not None:
            recorder.add(record)
        for finding in pipeline.process(record):
            log.update(finding, now)
    for finding in pipeline.finish():
        log.update(finding, now)
    alarms = {OURS: log.alarms}
    if recorder is not None:
        alarms |= {name: alarms_of(recorder, b, b.knob) for name, b in BASELINES.items()}
    return Outcome(
        part=scenario.part,
        row=scenario.row,
        seed=scenario.seed,
        nodes=scenario.spec.nodes,
        seconds=scenario.seconds,
        tick_seconds=scenario.spec.send_seconds,
        rank_steps=rank_steps,
        events=events_of(scenario, cluster.truth),
        alarms=alarms,
        expected=scenario.expected,
        job_of=_job_of(scenario.spec),
        set_aside=pipeline.set_aside.total(),
        benign=scenario.benign,
        row_days=node_days(scenario.spec, scenario.seconds, scenario.benign) if scenario.benign else {},
        without=scenario.without,
    )


def _job_of(spec: ClusterSpec) -> dict[str, str]:
    return {spec.node_name(node): job.job_id for job in spec.jobs for node in spec.nodes_of_job(job)}
