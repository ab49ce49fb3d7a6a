"""A job that stops because a machine failed is one finding about the machine, with the cost of the job."""

import dataclasses
import json
import random

import pytest
from msgspec.structs import replace

from alerts.cases.lifecycle import NOTIFIED
from alerts.cases.update import update
from alerts.config import FindingConfig
from alerts.finding import Finding
from alerts.kinds import UNHEARD_KIND
from alerts.report.render import render
from slowrank.telemetry import Baseline, Evidence, HangVote, Lost, NodeAnnounced, Subject, Suspicion
from slowrank.telemetry.records import Suspect
from streams.cluster import stage as finding_stage
from streams.cluster.hang_attribution import HangAttribution
from streams.cluster.stage import FindingStage
from streams.suspicions import Claim, HangClaim, Location
from tests.streams.versions import events_of, versions_of

T0 = 1_795_160_000.0
STOP = 100.0
NODES = ("n0", "n1", "n2", "n3")
JOB = Subject(type="job", cluster="c", job_id="j1")


def place(node, job="j1", rack=None):
    return Location("c", node, job, rack)


def claim(detector, family, kind, subject, **more):
    fields = {"weight": 3.0, "overwhelming": False} | more
    return Claim(detector=detector, catalogue_id="d", family=family, kind=kind, subject=subject, **fields)


def announced(nodes=NODES, job="j1", ts=1.0, rack=None, ports=2, gpus=8):
    """What NodeStage says of where nodes stand and which job they run."""
    place = {"cluster": "c", "job_id": job, "rack": rack, "ts": T0 + ts, "ports": ports, "gpus": gpus}
    return [NodeAnnounced(node=n, **place) for n in nodes]


def fault(ts, *, node="n1", kind="xid.79", state="raise", onset=None):
    """An event of the kernel log, which knows of no job."""
    said = claim("event.kernel", "event", kind, place(node, None).gpu("2"), weight=6.0, overwhelming=True)
    return said.suspicion(state, ts=T0 + ts, onset=T0 + (ts if onset is None else onset))


def flap(ts):
    subject = place("n1").nic("mlx5_0/1")
    said = claim("counter.nic", "nic", "link.nic_flap", subject, overwhelming=True)
    return said.suspicion("raise", ts=T0 + ts, onset=T0 + ts)


def hang(ts=STOP + 15, *, stop=STOP, state="raise", quiet=("n0", "n2", "n3"), spins=()):
    """Both keys of a hang: no step since ``stop``, and the nodes that do not work from ``stop`` on."""
    stopped = HangVote(
        cluster="c",
        signal="no_progress",
        detector="step_progress",
        family="job",
        kind="hang.job",
        state=state,
        subject=JOB,
        ts=T0 + ts,
        onset=T0 + stop,
        onset_lo=T0 + stop,
        onset_hi=T0 + stop,
        score=2.0,
        log_likelihood_ratio=6.0,
        overwhelming=True,
        gpus=32,
        ranks=32,
        nodes=4,
        evidence=(Evidence(metric="steps.silence_seconds", unit="s", detector="progress", value=ts - stop),),
    )
    return [stopped, *(vote(node, ts, stop, state, node not in spins) for node in quiet)]


def vote(node, ts, stop, state, spinning):
    share = Evidence(metric="gpu.spinning_ratio", unit="1", detector="quiet", value=float(spinning))
    said = HangClaim(
        signal="idle",
        detector="quiet",
        family="nic",
        subject=place(node).whole_node(),
        weight=1.0,
        evidence=(share,),
    )
    return said.suspicion(state, ts=T0 + ts, onset=T0 + stop)


def run(*suspicions, until=200, step=1):
    """Return every version that came out, ticking each ``step`` seconds."""
    return versions_of(suspicions, start=T0, until=until, step=step)


def told(versions):
    """Return the kinds of what notifiers would tell of, with the event, in order."""
    told_of = ("opened", "reopened", "resolved")
    return [(event, f.kind) for event, f in events_of(versions) if event in told_of]


def last(versions, kind):
    return next(f for f in reversed(versions) if f.kind == kind)


def test_a_fault_and_the_hang_it_causes_are_one_finding():
    """The finding about the GPU gains the job's cost, its blast radius and the hang's evidence."""
    versions = run(*announced(), fault(STOP + 0.5), *hang())
    assert told(versions) == [("opened", "xid.79")]
    machine, stopped = last(versions, "xid.79"), last(versions, "hang.job")
    assert machine.subject.node == "n1"
    assert (machine.gpu_hours_lost_per_hour, machine.severity) == (32.0, "critical")
    blast = machine.blast_radius
    assert (blast.jobs, blast.ranks, blast.nodes, blast.other_findings) == (("j1",), 32, 4, (stopped.id,))
    assert "steps.silence_seconds" in {e.metric for e in machine.evidence}
    assert machine.cause.hypothesis == "xid.79"
    assert (stopped.status, stopped.group_key) == ("suspected", machine.dedup_key)


def test_a_hang_that_opened_first_is_absorbed_when_the_fault_is_known():
    """Late evidence of the fault takes over: the hang ends where the other finding opened."""
    versions = run(*announced(), *hang(), fault(STOP + 20, onset=STOP + 1))
    assert told(versions) == [("opened", "hang.job"), ("opened", "xid.79"), ("resolved", "hang.job")]
    machine, stopped = last(versions, "xid.79"), last(versions, "hang.job")
    assert (stopped.status, stopped.resolved_at) == ("resolved", T0 + STOP + 20)
    assert machine.gpu_hours_lost_per_hour == 32.0


@pytest.mark.parametrize(
    "cause",
    [
        fault(STOP - 61),
        fault(STOP + 20, onset=STOP + 16),
        fault(STOP, node="m1"),
        fault(STOP, kind="throttle.thermal"),
        flap(STOP - 20),
    ],
    ids=["too early", "too late", "another job's node", "stops no job", "a flap the job survived"],
)
def test_what_did_not_stop_the_job_does_not_explain_it(cause):
    """A fault outside the window, elsewhere, or of a kind that jobs survive leaves the hang a finding."""
    versions = run(*announced(), *announced(["m1"], job="j2"), cause, *hang())
    assert ("opened", "hang.job") in told(versions)
    assert last(versions, "hang.job").group_key is None
    assert all(f.gpu_hours_lost is None for f in versions if f.kind != "hang.job")


def test_a_port_that_goes_down_as_the_job_stops_explains_it():
    """Right before the stop, a dead port is what stopped it."""
    versions = run(*announced(), flap(STOP + 0.4), *hang())
    assert told(versions) == [("opened", "link.nic_flap")]


def test_without_a_fault_the_hang_stays_what_it_is():
    """A hang nobody explains is opened with its own cost."""
    versions = run(*announced(), *hang())
    assert told(versions) == [("opened", "hang.job")]
    assert last(versions, "hang.job").gpu_hours_lost_per_hour == 32.0


def test_of_two_faults_the_earlier_explains_the_hang():
    """What comes seconds later is a consequence, even where it was said first."""
    later = fault(STOP + 5, node="n2", kind="xid.119")
    versions = run(*announced(), fault(STOP + 6, onset=STOP + 0.5), later, *hang())
    assert last(versions, "hang.job").group_key == last(versions, "xid.79").dedup_key
    assert last(versions, "xid.119").gpu_hours_lost is None


def test_of_faults_at_once_the_suspect_of_the_hang_explains_it():
    """Within the second in which nodes are read, the node that all others wait for is to blame."""
    faults = fault(STOP + 0.5, node="n2"), fault(STOP + 0.9, node="n3")
    versions = run(*announced(), *faults, *hang(quiet=NODES, spins=("n3",)))
    assert (last(versions, "hang.job").group_key or "").startswith("c/gpu/n3")


@pytest.mark.parametrize("later", [1.5, 40.0])
def test_a_graver_fault_of_the_gpu_takes_over_the_stop_that_came_with_the_first(later):
    """Its GPU fell off the bus after the memory error that stopped the job."""
    faults = fault(STOP + 0.5, kind="ecc.uncorrectable"), fault(STOP + later)
    versions = run(*announced(), *faults, *hang())
    machine = last(versions, "xid.79")
    assert last(versions, "hang.job").group_key == machine.dedup_key
    assert machine.gpu_hours_lost_per_hour == 32.0
    assert last(versions, "ecc.uncorrectable").gpu_hours_lost is None


def test_the_finding_lasts_as_long_as_the_job_stands_still():
    """A GPU that is well again has not brought its job back; the job's first steps end the finding."""
    cleared = fault(STOP + 30, state="clear", onset=STOP + 0.5)
    stuck = [*announced(), fault(STOP + 0.5), *hang(), cleared]
    assert last(run(*stuck, until=1000), "xid.79").status == "open"
    ended = last(run(*stuck, *hang(500, state="clear"), until=1000), "xid.79")
    assert (ended.status, ended.resolved_at) == ("resolved", T0 + 800)


def release(ts, *, reused=False):
    """Every node says that the job has left it, for another one or for none."""
    said = (
        HangClaim(
            signal="left",
            detector="quiet.ended",
            family="host",
            subject=place(node).whole_node(),
            weight=-4.0,
            released=True,
            reused=reused,
        )
        for node in NODES
    )
    return [c.suspicion("raise", ts=T0 + ts, onset=T0 + ts) for c in said]


def job_end(ts):
    said = HangClaim(
        signal="ended", detector="job.ended", family="job", subject=place("n0").whole_node(), weight=-4.0
    )
    return [said.suspicion("raise", ts=T0 + ts, onset=T0 + ts)]


@pytest.mark.parametrize(
    ("later", "until"),
    [
        (hang(500, state="clear"), 500),
        (release(700, reused=True), 700),
        (job_end(900), 900),
        ([*hang(500, state="clear"), *hang(1520, stop=1500.0)[:1], *hang(1530, state="clear")[:1]], 500),
        ([], 160 + 3600),
    ],
    ids=["the next step", "another job", "the end", "a pause later", "for an hour"],
)
def test_a_fault_has_the_cost_of_its_stop_also_while_the_job_has_no_machines(later, until):
    """The job is gone from its machines at 160 s and waits for its next attempt there or elsewhere."""
    stuck = [*announced(), fault(STOP + 0.5), *hang(), *release(160)]
    down, over = (run(*stuck, *said, until=end, step=10) for said, end in (([], 480), (later, 4500)))
    assert last(down, "xid.79").gpu_hours_lost_per_hour == 32.0
    found = last(over, "xid.79")
    assert found.gpu_hours_lost == pytest.approx(32 * (until - STOP) / 3600, abs=1e-3)
    assert found.gpu_hours_lost_per_hour == 0.0


def no_steps(stop, *, after=15, state="raise"):
    """The steps alone say that the job stands still, or that it goes on."""
    return hang(stop + after, stop=stop, state=state, quiet=())


def declared(ts, signal="paused"):
    said = HangClaim(
        signal=signal, detector="job.paused", family="host", subject=place("n0").whole_node(), weight=-4.0
    )
    return [said.suspicion("raise", ts=T0 + ts, onset=T0 + ts)]


@pytest.mark.parametrize(
    ("later", "until"),
    [
        (no_steps(STOP, after=400, state="clear"), 500),
        ([*declared(STOP + 8), *no_steps(STOP, after=400, state="clear")], 500),
        (release(700, reused=True), 700),
        (job_end(900), 900),
        ([], STOP + 15 + 3600),
    ],
    ids=["the next step", "the next step of a declared start", "another job", "the end", "for an hour"],
)
def test_a_fault_has_the_cost_of_a_stop_whose_processes_end_at_once(later, until):
    """Such a job never hangs: its nodes were left before its steps were missed."""
    versions = run(
        *announced(), fault(STOP + 0.5), *release(STOP + 4), *no_steps(STOP), *later, until=4500, step=10
    )
    assert told(versions) == [("opened", "xid.79")]
    found = last(versions, "xid.79")
    assert found.gpu_hours_lost == pytest.approx(32 * (until - STOP) / 3600, abs=1e-3)
    assert (found.gpu_hours_lost_per_hour, found.severity) == (0.0, "critical")


@pytest.mark.parametrize(
    "said",
    [
        [fault(STOP + 0.5), *job_end(STOP + 5), *no_steps(STOP)],
        [fault(STOP + 0.5), *declared(STOP + 0.2), *no_steps(STOP)],
        [fault(STOP + 0.5, kind="xid.45"), *no_steps(STOP)],
        [fault(STOP + 0.5, kind="throttle.thermal"), *no_steps(STOP)],
        [fault(STOP - 61), *no_steps(STOP)],
        [fault(STOP + 0.5, node="m1"), *no_steps(STOP)],
        [fault(STOP + 0.5), *(replace(vote, early=True) for vote in no_steps(STOP))],
    ],
    ids=[
        "it ended",
        "it saves",
        "its processes were cleaned up",
        "no fatal fault",
        "too early",
        "another job's node",
        "a pause like others",
    ],
)
def test_a_job_that_has_left_its_machines_otherwise_costs_nothing(said):
    others = announced(["m1"], job="j2")
    versions = run(*announced(), *others, *release(STOP + 4), *said, until=400)
    assert [f for f in versions if f.gpu_hours_lost or f.gpu_hours_lost_per_hour] == []
    assert "hang.job" not in {kind for _, kind in told(versions)}


@pytest.mark.parametrize("leaves", [True, False], ids=["its processes end at once", "it hangs"])
def test_each_stop_of_a_job_is_on_the_account_of_its_own_cause(leaves):
    """A job that stops twice, for 200 s and for 300 s."""

    def stop(ts, node, seconds):
        shows = [*release(ts + 4), *no_steps(ts)] if leaves else hang(ts + 15, stop=ts)
        over = (
            no_steps(ts, after=seconds, state="clear")
            if leaves
            else hang(ts + seconds, stop=ts, state="clear")
        )
        return [fault(ts + 0.5, node=node), *shows, *over]

    said = [*stop(STOP, "n1", 200), *announced(ts=STOP + 200), *stop(1000, "n2", 300)]
    versions = run(*announced(), *said, until=2000, step=5)
    lost = {f.subject.node: f.gpu_hours_lost for f in versions if f.kind == "xid.79"}
    assert lost == {
        "n1": pytest.approx(32 * 200 / 3600, abs=1e-3),
        "n2": pytest.approx(32 * 300 / 3600, abs=1e-3),
    }


def oom_kill(ts, node="n1", metric="host.oom_kill"):
    """A process that was killed for memory, not enough for a finding."""
    seen = Evidence(metric=metric, unit="1", detector="event", value=1.0)
    said = claim("event.kmsg", "host", "host.memory_pressure", place(node, None).whole_node(), weight=2.0)
    said = dataclasses.replace(said, evidence=(seen,), severity="warning")
    return said.suspicion("raise", ts=T0 + ts, onset=T0 + ts)


def hung_task(ts, since, node="n1", *, earliest=None):
    said = claim("event.kmsg", "host", "host.hung_task", place(node, None).whole_node(), overwhelming=True)
    interval = (T0 + (since if earliest is None else earliest), T0 + since)
    return said.suspicion("raise", ts=T0 + ts, onset=T0 + since, interval=interval)


@pytest.mark.parametrize("stop", [hang(), [*release(STOP + 4), *no_steps(STOP)]], ids=["hangs", "ends"])
@pytest.mark.parametrize("metric", ["host.oom_kill", "host.oom_kills_total"])
def test_a_process_that_is_killed_for_memory_as_its_job_stops_is_the_cause(stop, metric):
    """The stop is the second witness, and costs what the finding about the node says."""
    goes_on = no_steps(STOP, after=200, state="clear")
    versions = run(*announced(), oom_kill(STOP + 0.6, metric=metric), *stop, *goes_on, until=400)
    assert told(versions) == [("opened", "host.memory_pressure")]
    found = last(versions, "host.memory_pressure")
    assert found.gpu_hours_lost == pytest.approx(32 * 200 / 3600, abs=1e-3)
    assert found.blast_radius.jobs == ("j1",)


@pytest.mark.parametrize(
    "shown",
    [
        [oom_kill(STOP - 16)],
        [oom_kill(STOP + 0.6, node="m1")],
        [oom_kill(STOP + 0.6), oom_kill(STOP + 0.8, node="n2")],
        [oom_kill(STOP + 0.6, metric="host.pressure.memory_some_ratio")],
        [hung_task(STOP + 150, STOP + 30)],
        [hung_task(STOP + 130, STOP + 10), hung_task(STOP + 131, STOP + 11, node="n2")],
    ],
    ids=[
        "killed long before",
        "on another job's node",
        "killed on two nodes",
        "short of memory",
        "blocked later",
        "blocked on two nodes",
    ],
)
def test_what_a_node_shows_at_another_time_or_not_alone_did_not_stop_the_job(shown):
    versions = run(*announced(), *announced(["m1"], job="j2"), *shown, *hang(), until=400)
    assert ("opened", "hang.job") in told(versions)
    assert last(versions, "hang.job").group_key is None


def test_a_job_that_goes_on_confirms_no_process_that_was_killed():
    assert told(run(*announced(), oom_kill(STOP + 0.6), until=400)) == []


@pytest.mark.parametrize(
    "blocked",
    [hung_task(STOP + 130, STOP + 10), hung_task(STOP + 180, STOP + 60, earliest=STOP - 60)],
    ids=["since the stop", "some time since the last round"],
)
def test_a_task_that_is_blocked_since_its_job_stops_explains_it(blocked):
    """The kernel logs it minutes later; then the hang ends as a finding of its own."""
    versions = run(*announced(), *hang(), blocked, until=400)
    hung = [("opened", "hang.job"), ("opened", "host.hung_task"), ("resolved", "hang.job")]
    assert told(versions) == hung
    assert last(versions, "host.hung_task").gpu_hours_lost_per_hour == 32.0


def test_a_fault_that_comes_again_explains_the_stop_that_it_comes_with():
    """A GPU that has failed before, and was not repaired."""
    versions = run(
        *announced(), fault(10), *announced(ts=900), fault(1000.5), *hang(1015, stop=1000.0), until=1100
    )
    assert last(versions, "hang.job").group_key == last(versions, "xid.79").dedup_key


def test_a_stop_without_a_fault_costs_nothing_once_the_job_has_no_machines():
    found = last(run(*announced(), *hang(), *release(160), until=1000), "hang.job")
    assert found.gpu_hours_lost == pytest.approx(32 * 60 / 3600, abs=1e-3)
    assert found.gpu_hours_lost_per_hour == 0.0


def test_a_job_that_moved_away_is_not_stopped_by_its_former_node():
    """A node in repair explains no hang of a job that has left it."""
    moved = announced([*NODES[:1], *NODES[2:]], ts=900)
    versions = run(*announced(), *moved, fault(1000.5), *hang(1015, stop=1000.0), until=1100)
    assert ("opened", "hang.job") in told(versions)


def test_a_rack_that_stops_its_job_is_one_finding():
    """Where an incident explains the silence of the nodes, it tells of the job's hang: the nodes are gone."""
    rack, rest = [f"r{i}" for i in range(4)], [f"s{i}" for i in range(12)]
    places = [s for nodes in (rack, rest) for s in announced(nodes, rack=nodes[0])]
    dark = [claim("silence", "silence", "exporter.stale", place(n, rack="r0").whole_node()) for n in rack]
    gone = [c.suspicion("raise", ts=T0 + STOP + 10, onset=T0 + STOP + i / 10) for i, c in enumerate(dark)]
    versions = run(*places, *gone, *hang(quiet=rest))
    assert told(versions) == [("opened", "exporter.stale")]
    [identity] = {f.id for f in versions if f.subject.rack == "r0" and f.subject.node is None}
    incident = next(f for f in reversed(versions) if f.id == identity)
    assert (incident.kind, incident.severity) == ("node.silent", "critical")
    assert incident.title == "Rack r0 is silent"
    assert last(versions, "hang.job").group_key == incident.dedup_key
    assert incident.gpu_hours_lost_per_hour == 32.0


def slow_transfers(ts, since, *, hypothesis="congestion", coords=None, suspects=(), evidence=()):
    """What the steps of the job say: its transfers have become slow, or those of one group."""
    return Suspicion(
        cluster="c",
        detector="peer_step",
        family="job",
        kind="straggler.job_wide",
        state="raise",
        subject=Subject(type="job", cluster="c", job_id="j1", coords=coords),
        ts=T0 + ts,
        onset=T0 + since,
        onset_lo=T0 + since,
        onset_hi=T0 + since,
        score=1.0,
        log_likelihood_ratio=5.0,
        overwhelming=True,
        gpus=32,
        ranks=32,
        nodes=4,
        job_slowdown_ratio=1.5,
        # Of two that are open at once each is charged a half.
        lost=Lost(gpu_seconds=(ts - since) * 16 / 3, gpus=16 / 3),
        hypotheses={hypothesis: 5.0},
        suspects=suspects,
        evidence=evidence,
    )


def port(kind, ts, since, node="n1"):
    where = place(node, None)
    # A narrowed link is its GPU's, and TCP the whole node's.
    others = {"link.pcie_downgrade": where.gpu("0"), "link.tcp_delay": where.whole_node()}
    subject = others.get(kind, where.nic("mlx5_0/1"))
    said = claim("counter.nic", "nic", kind, subject, overwhelming=True)
    return said.suspicion("raise", ts=T0 + ts, onset=T0 + since)


@pytest.mark.parametrize("kind", ["link.nic_errors", "link.nic_slow", "link.pcie_downgrade"])
def test_a_slow_port_tells_of_the_transfers_it_slows(kind):
    """The job's transfers, and those of the port's group, are no news beside it: it bears their cost."""
    group = slow_transfers(150, 100, hypothesis="group", coords={"tp": 1})
    versions = run(*announced(), port(kind, 104, 101), slow_transfers(113, 100), group)
    assert told(versions) == [("opened", kind)]
    link = last(versions, kind)
    assert (link.gpu_hours_lost_per_hour, link.job_slowdown_ratio) == (pytest.approx(32 / 3, abs=1e-3), 1.5)
    [whole] = {f.id for f in versions if f.kind == "straggler.job_wide" and f.subject.coords is None}
    assert link.blast_radius.other_findings == (whole,)


def test_transfers_told_first_are_absorbed_when_the_port_is_found():
    """A port without errors takes longer to tell; then the job's finding ends where the port's begins."""
    versions = run(*announced(), slow_transfers(113, 100), port("link.nic_slow", 132, 101))
    news = [("opened", "straggler.job_wide"), ("opened", "link.nic_slow"), ("resolved", "straggler.job_wide")]
    assert told(versions) == news


@pytest.mark.parametrize(
    ("port", "transfers"),
    [
        (port("link.nic_errors", 20, 19), slow_transfers(113, 100)),
        (port("link.nic_errors", 104, 101, node="m1"), slow_transfers(113, 100)),
        (port("link.nic_errors", 104, 101), slow_transfers(113, 100, hypothesis="imbalance.stage")),
        (port("link.nic_flap", 104, 101), slow_transfers(113, 100)),
    ],
    ids=["long before", "another job's node", "no transfers", "a flap"],
)
def test_what_slows_no_transfers_does_not_explain_them(port, transfers):
    """A port that failed at another time or place, or passed, and work that is uneven: two findings."""
    versions = run(*announced(), *announced(["m1"], job="j2"), port, transfers)
    assert ("opened", "straggler.job_wide") in told(versions)


def slow_ranks(*nodes):
    """The ranks of the job whose transfers have become slow, as the suspects of its finding."""
    ranks = [Subject(type="gpu", cluster="c", node=n, gpu_index=i) for n in nodes for i in range(4)]
    return tuple(Suspect(subject=rank, probability=1 / len(ranks)) for rank in ranks)


def weak_port(ts, since, node="n1", *, kind="link.nic_slow", state="raise", left=0.4):
    """A port that falls behind the others of its node, which is not enough for a finding: of its bytes a
    second a share is ``left``."""
    before = Baseline(median=5e9, mad=1e8, n=60)
    rate = Evidence(
        metric="nic.port.tx_bytes_total", unit="By/s", detector="bocpd", value=left * 5e9, baseline=before
    )
    said = claim("change.nic", "nic", kind, place(node, None).nic("mlx5_0/1"), weight=1.5)
    said = dataclasses.replace(said, severity="warning", evidence=(rate,))
    return said.suspicion(state, ts=T0 + ts, onset=T0 + since)


def test_transfers_that_become_slow_with_one_port_confirm_it():
    """Without errors it would be told minutes later, and the job by itself."""
    before = run(*announced(), weak_port(110, 101), slow_transfers(113, 100))
    assert told(before) == [("opened", "link.nic_slow")]
    later = run(*announced(), slow_transfers(113, 100), weak_port(132, 101))
    news = [("opened", "straggler.job_wide"), ("opened", "link.nic_slow"), ("resolved", "straggler.job_wide")]
    assert told(later) == news
    assert last(later, "link.nic_slow").gpu_hours_lost_per_hour == pytest.approx(16 / 3, abs=1e-3)


def test_a_port_that_transfers_confirmed_stays_as_grave_as_it_became():
    steps = [slow_transfers(ts, 100) for ts in (113, 130, 190)]
    again = weak_port(195, 101, state="update")
    versions = run(*announced(), weak_port(110, 101), *steps, again)
    severities = [f.severity for f in versions if f.kind == "link.nic_slow" and f.status == "open"]
    assert list(dict.fromkeys(severities)) == ["warning", "error", "critical"]
    assert severities[-1] == "critical"


@pytest.mark.parametrize(
    ("ports", "transfers"),
    [
        ([weak_port(110, 101), weak_port(111, 101, "n2")], slow_transfers(113, 100)),
        ([weak_port(30, 29)], slow_transfers(113, 100)),
        ([weak_port(110, 101, left=0.6)], slow_transfers(113, 100)),
        ([weak_port(110, 101, "m1")], slow_transfers(113, 100)),
        ([weak_port(110, 101, kind="link.nic_errors")], slow_transfers(113, 100)),
        ([weak_port(110, 101)], slow_transfers(113, 100, hypothesis="imbalance.stage")),
        ([weak_port(110, 101), weak_port(112, 101, state="clear")], slow_transfers(113, 100)),
        ([weak_port(110, 101)], slow_transfers(113, 100, hypothesis="group", suspects=slow_ranks("n3"))),
    ],
    ids=[
        "two ports",
        "before",
        "as slow as its job",
        "another job's",
        "errors",
        "no transfers",
        "passed",
        "another machine's ranks",
    ],
)
def test_other_ports_are_not_confirmed_by_transfers(ports, transfers):
    versions = run(*announced(), *announced(["m1"], job="j2"), *ports, transfers)
    assert [kind for _, kind in told(versions)] == ["straggler.job_wide"]


LONG_STEPS = (Evidence(metric="comm_seconds.long_steps", unit="steps", detector="peer_step", value=9.0),)


def test_a_port_that_flaps_explains_transfers_that_are_slow_again_and_again():
    """The first of the slow steps may be minutes before the first loss of the link that was counted."""
    slow = replace(slow_transfers(400, 100, evidence=LONG_STEPS), onset_hi=T0 + 400)
    lost = port("link.nic_flap", 250, 249)
    assert told(run(*announced(), lost, slow, until=500)) == [("opened", "link.nic_flap")]
    again = [replace(lost, state="clear", ts=T0 + 500), port("link.nic_flap", 560, 559)]
    assert told(run(*announced(), lost, slow, *again, until=700)) == [("opened", "link.nic_flap")]
    once = [replace(lost, severity="warning"), slow]
    assert ("opened", "straggler.job_wide") in told(run(*announced(), *once, until=500))


@pytest.mark.parametrize(("nodes", "part"), [(["n1"], True), (["n1", "n2"], False), (["n2"], False)])
def test_a_slow_machine_tells_of_the_transfers_that_only_its_ranks_have(nodes, part):
    """One finding with one next step: the machine and its links are one place."""
    node = claim("peer_step", "timing", "straggler.fail_slow", place("n1").whole_node(), overwhelming=True)
    slow = slow_transfers(113, 100, hypothesis="group", suspects=slow_ranks(*nodes))
    versions = run(*announced(), slow, node.suspicion("raise", ts=T0 + 140, onset=T0 + 99))
    transfers = last(versions, "straggler.job_wide")
    assert (transfers.status, transfers.group_key) == (
        ("resolved", last(versions, "straggler.fail_slow").dedup_key) if part else ("open", None)
    )


@pytest.mark.parametrize("kind", ["link.nic_errors", "link.nic_slow"])
def test_a_port_that_slows_its_job_becomes_graver(kind):
    """An error while that may pass by itself, critical once it has cost the job half a minute."""
    steps = [slow_transfers(ts, 100) for ts in (113, 130, 190)]
    versions = run(*announced(), port(kind, 104, 101), *steps)
    severities = [f.severity for f in versions if f.kind == kind]
    assert list(dict.fromkeys(severities)) == ["warning", "error", "critical"]
    assert last(versions, kind).action.commands


@pytest.mark.parametrize(
    "faults",
    [
        [port("link.nic_errors", 104, 101), port("link.nic_errors", 104, 101.5, node="n2")],
        [port("link.tcp_delay", 104, 101)],
        [port("link.nic_errors", 104, 101, node="n3")],
    ],
    ids=["ports of two machines", "what congestion does", "another machine than the slow ranks'"],
)
def test_what_may_come_from_congestion_or_by_chance_becomes_no_graver(faults):
    """Then the machine may be none of the causes."""
    named = slow_ranks("n1") if faults[0].subject.node == "n3" else ()
    hypothesis = "group" if named else "congestion"
    steps = [slow_transfers(ts, 100, hypothesis=hypothesis, suspects=named) for ts in (113, 190)]
    versions = run(*announced(), *faults, *steps)
    assert {f.severity for f in versions if f.kind.startswith("link.")} == {"warning"}


def test_uneven_work_that_is_found_beside_slow_transfers_is_no_part_of_their_port():
    """The port explains the transfers alone, and each finding ends by itself."""
    work = slow_transfers(160, 100, hypothesis="imbalance.workload")
    faulty, transfers = port("link.nic_slow", 104, 101), slow_transfers(113, 100)
    over = [replace(s, state="clear", ts=T0 + 300) for s in (transfers, work, faulty)]
    versions = run(*announced(), faulty, transfers, work, *over, until=4000)
    assert last(versions, "link.nic_slow").status == "resolved"
    ends = {f.dedup_key: (f.status, f.group_key) for f in versions if f.kind == "straggler.job_wide"}
    assert ends == {
        "c/job/j1/straggler.job_wide": ("resolved", None),
        "c/job/j1/straggler.job_wide/transfers": ("resolved", "c/nic/n1:mlx5_0:1/link.nic_slow"),
    }


def test_jobs_that_were_slow_long_ago_are_not_shown_again(monkeypatch):
    """A finding that is over costs nothing until something new is heard of it."""
    shown = []

    def counted(sources, config, **options):
        shown.append(sources.case)
        return render(sources, config, **options)

    monkeypatch.setattr(finding_stage, "render", counted)
    stage = FindingStage()
    slow = slow_transfers(113, 100, hypothesis="imbalance.stage")
    for said in (slow, replace(slow, state="clear", ts=T0 + 130)):
        stage.process(said)
    for second in range(100, 1500):
        stage.tick(T0 + second)
    assert shown
    shown.clear()
    for second in range(1500, 1600):
        stage.tick(T0 + second)
    assert not shown


def unheard(ts, *, state="raise", since=STOP + 2, node="n1"):
    subject = place(node).whole_node()
    said = claim("silence.unheard", "silence", UNHEARD_KIND, subject, weight=1.0)
    return said.suspicion(state, ts=T0 + ts, onset=T0 + since)


def stale(ts, since=STOP + 2, *, node="n1", state="raise"):
    subject = place(node).whole_node()
    said = claim("silence.exporter.stale", "silence", "exporter.stale", subject, weight=1.0)
    return said.suspicion(state, ts=T0 + ts, onset=T0 + since)


@pytest.mark.parametrize("found", [STOP + 12.0, STOP + 16.0], ids=["the hang first", "the silence first"])
def test_a_node_that_falls_silent_as_its_job_stops_is_one_finding(found):
    """Whichever is found first, one is told: the node is silent, not its exporter alone."""
    quiet = hang(found, quiet=("n0", "n2", "n3"))
    versions = run(*announced(), unheard(STOP + 7), *quiet, stale(STOP + 13.5))
    assert told(versions) == [("opened", "exporter.stale")]
    node = next(f for f in reversed(versions) if f.subject.node == "n1")
    assert (node.kind, node.status, node.severity) == ("node.silent", "open", "error")
    assert (node.cause.hypothesis, node.action.code) == ("node.silent", "REBOOT_NODE")
    assert node.gpu_hours_lost_per_hour == 32.0
    assert last(versions, "hang.job").status == "suspected"


@pytest.mark.parametrize(
    "later",
    [[], [stale(150, node="n0", state="clear")], [stale(700 + i, 690, node="n0") for i in range(3)]],
    ids=["all silent for good", "one comes back", "one falls silent again"],
)
def test_no_node_is_named_where_all_nodes_of_a_job_fall_silent_as_it_stops(later):
    """The job may have ended, and the collection of its telemetry with it: no node stands out."""
    two = ("n0", "n1")
    dark = [s for n in two for s in (unheard(STOP + 7, node=n), stale(STOP + 12, node=n))]
    back = [stale(500, node=n, state="clear") for n in two] if later and later[0].state == "raise" else []
    others = announced([f"m{i}" for i in range(20)], job="j2")
    said = [*others, *announced(two, ports=0), *dark, alone(severity="info"), *back, *later]
    versions = run(*said, until=900)
    assert {f.kind for f in versions} == {"exporter.stale", "hang.job"}
    assert {f.severity for f in versions if f.kind == "exporter.stale"} == {"warning"}
    stopped = last(versions, "hang.job")
    assert (stopped.status, stopped.severity, stopped.group_key) == ("open", "info", None)


@pytest.mark.parametrize(
    "heard",
    [[], [stale(20, 10, node="n0"), stale(30, 10, node="n0", state="clear")]],
    ids=["all the time", "again before the job stopped"],
)
def test_a_silent_node_is_named_where_another_of_its_job_is_heard(heard):
    """One that goes on sending while the job stands still shows that the other is what the job waits for."""
    nodes = [*announced([f"m{i}" for i in range(20)], job="j2"), *announced(("n0", "n1"), ports=0)]
    said = [*heard, unheard(STOP + 7), stale(STOP + 12), alone(severity="info")]
    versions = run(*nodes, *said, until=300)
    assert ("n1", "node.silent") in {(f.subject.node, f.kind) for f in versions}
    assert ("n0", "node.silent") not in {(f.subject.node, f.kind) for f in versions}


@pytest.mark.parametrize(
    ("silence", "by"),
    [([unheard(STOP + 7), unheard(STOP + 14, state="clear")], 14), ([unheard(STOP + 7)], 19)],
    ids=["heard again", "nobody says more"],
)
def test_a_hang_waits_for_a_silent_node_no_longer_than_it_must(silence, by):
    """Without a finding about the node, the hang is told: as soon as it is heard again, or after 7 s."""
    versions = run(*announced(), *silence, *hang(STOP + 12))
    assert told(versions) == [("opened", "hang.job")]
    shown = run(*announced(), *silence, *hang(STOP + 12), until=int(STOP) + by)
    before = run(*announced(), *silence, *hang(STOP + 12), until=int(STOP) + by - 1)
    assert (last(shown, "hang.job").status, last(before, "hang.job").status) == ("open", "suspected")


def test_order_repeats_and_ticks_change_nothing():
    """Shuffled and repeated within lateness, and looked at every 1, 7 or 50 s: the same last versions."""
    said = [
        *announced(),
        *hang(),
        fault(STOP + 20, onset=STOP + 1),
        fault(STOP + 21, node="n3", kind="xid.119", onset=STOP + 2),
        *hang(STOP + 60, state="clear"),
    ]
    straight = _bytes(run(*said, until=700))
    for seed, step in enumerate((1, 7, 50, 100)):
        stage, versions = FindingStage(), list[Finding]()
        rest = random.Random(seed).sample(said * 2, 2 * len(said))
        for k, s in enumerate(rest):
            stage.process(s)
            versions += stage.tick(max(T0, s.ts)) if k % 3 == 0 else ()
        for second in range(0, 701, step):
            versions += stage.tick(T0 + second)
        assert _bytes(versions) == straight


def _bytes(versions):
    final = {f.id: f for f in versions}
    return json.dumps([final[key].to_json() for key in sorted(final)], sort_keys=True)


def test_nobody_is_told_twice_when_the_fault_is_over_first():
    """The hang that goes on after its fault has ended is never opened beside it."""
    cleared = fault(STOP + 30, state="clear", onset=STOP + 0.5)
    versions = run(*announced(), fault(STOP + 0.5), *hang(), cleared, until=1000)
    assert told(versions) == [("opened", "xid.79")]
    assert all(f.status not in NOTIFIED for f in versions if f.kind == "hang.job")


def test_jobs_long_gone_are_forgotten():
    """Where a job ran is kept while its nodes are heard of or it has a case, and for an hour after."""
    joints = HangAttribution(FindingConfig())
    for s in announced():
        joints.runs(s.cluster, s.subject.node, s.subject.job_id, s.ts, votes=True)
    stopped = update(None, hang()[0], FindingConfig())
    assert stopped is not None
    joints.prune(T0 + 3600, in_use=())
    joints.prune(T0 + 9 * 3600, in_use={("c/job/j1", False)})
    assert joints.nodes_of(stopped, T0 + STOP) == [*NODES]
    joints.prune(T0 + 10 * 3600, in_use={("c/job/j2", False)})
    assert joints.nodes_of(stopped, T0 + STOP) == []
    # Its stop is repeated for a day, and needs them as it did.
    assert not joints.weighed(alone()).alone
    joints.prune(T0 + 26 * 3600, in_use=())
    assert joints.weighed(alone()).alone


def alone(*, severity="error"):
    """A stop that counts without the votes of nodes, where there are none that could vote."""
    return replace(hang(STOP + 60, quiet=())[0], alone=True, severity=severity)


@pytest.mark.parametrize("severity", ["info", "error"])
@pytest.mark.parametrize("seen", [[], announced(ports=0), announced(gpus=0), announced(job="j2")])
def test_without_nodes_that_can_vote_the_steps_suffice(seen, severity):
    """No samples at all, of hosts without GPUs, of GPUs alone, or of another job."""
    found = last(run(*seen, alone(severity=severity)), "hang.job")
    assert (found.status, found.severity, found.detected_at) == ("open", severity, T0 + STOP + 60)


@pytest.mark.parametrize("order", [1, -1])
def test_where_nodes_can_vote_they_must(order):
    """Whichever partition is read first: the announcements are older than the stop."""
    versions = run(*[*announced(), alone()][::order])
    assert last(versions, "hang.job").status == "suspected"
    assert told(run(*announced(ts=STOP + 30), alone())) == [("opened", "hang.job")]
