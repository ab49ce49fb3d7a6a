"""Which mode and which settings hold for a cluster and a job."""

import pytest
from msgspec.structs import replace

from slowrank.telemetry import NodeAnnounced, Subject, Suspicion
from streams.config.settings import Configs, Tuning
from streams.config.toml_file import tuning_of
from streams.node.inventory import NodeAnnouncer
from streams.suspicions import Location
from tests.streams import traffic

FILE = {
    "detectors": {
        "peer_step": {"min_effect": 0.03},
        "level_changes": {"mode": "shadow"},
        "counters": {"mode": "off"},
        "counter.gpu.ecc.uncorrected_total": {"mode": "on"},
    },
    "clusters": {
        "prod-*": {"detectors": {"peer_step": {"min_effect": 0.04, "learn": 30}}},
        "prod-a": {"detectors": {"peer_step": {"min_effect": 0.05}, "level_changes": {"mode": "on"}}},
    },
    "jobs": {
        "*": {"detectors": {"peer_step": {"floor": 0.01}}},
        "rl-*": {"detectors": {"peer_step": {"mode": "off", "min_effect": 0.06}}},
        "rl-7": {"detectors": {"peer_step": {"mode": "shadow"}}},
    },
}


def tuning():
    return tuning_of(FILE, file="slowrank.toml")


def suspicion(catalogue_id="peer_step", rule_id="", *, cluster="lab", job="j", state="raise"):
    return Suspicion(
        cluster=cluster,
        detector="d",
        catalogue_id=catalogue_id,
        rule_id=rule_id,
        family="timing",
        kind="straggler.fail_slow",
        state=state,
        subject=Subject(type="job", cluster=cluster, job_id=job),
        ts=1.0,
        onset=0.0,
        onset_lo=0.0,
        onset_hi=0.0,
        score=1.0,
        log_likelihood_ratio=1.0,
    )


@pytest.mark.parametrize(
    ("cluster", "job", "min_effect", "learn", "floor"),
    [
        ("lab", None, 0.03, 20, 0.005),
        ("lab", "j", 0.03, 20, 0.01),
        ("prod-b", None, 0.04, 30, 0.005),
        ("prod-a", "j", 0.05, 30, 0.01),
        ("prod-a", "rl-1", 0.06, 30, 0.01),
    ],
)
def test_jobs_come_before_clusters_and_those_before_all(cluster, job, min_effect, learn, floor):
    """Layers add up; of two that set the same, the more particular one holds."""
    straggler = tuning().configs(cluster, job).job.straggler
    assert (straggler.min_effect, straggler.learn, straggler.floor) == (min_effect, learn, floor)


def test_order_in_the_file_decides_nothing():
    """A full name comes before a pattern wherever it stands."""
    turned = {table: dict(reversed(FILE[table].items())) for table in FILE}
    other = tuning_of(turned, file="slowrank.toml")
    for cluster, job in (("prod-a", "rl-7"), ("prod-b", "rl-1"), ("lab", None)):
        assert other.configs(cluster, job) == tuning().configs(cluster, job)
        assert other.mode("peer_step", cluster, job) == tuning().mode("peer_step", cluster, job)


@pytest.mark.parametrize(
    ("name", "cluster", "job", "mode"),
    [
        ("peer_step", "lab", "j", "on"),
        ("peer_step", "lab", "rl-1", "off"),
        ("peer_step", "lab", "rl-7", "shadow"),
        ("level_changes", "lab", None, "shadow"),
        ("level_changes", "prod-a", None, "on"),
        ("hang", "lab", "rl-1", "on"),
    ],
)
def test_mode_of_a_detector(name, cluster, job, mode):
    """On, until a table says otherwise; the most particular table that says anything decides."""
    assert tuning().mode(name, cluster, job)[0] == mode


def test_a_rule_may_differ_from_its_detector():
    """A single counter stays on while all others are off."""
    held = tuning()
    assert held.judged(suspicion("counters", "counter.gpu.ecc.uncorrected_total")) is not None
    assert held.judged(suspicion("counters", "counter.gpu.ecc.corrected_total")) is None


def test_a_detector_is_switched_off_by_its_own_name_alone():
    """Detectors that read the same step times have modes of their own."""
    held = tuning_of({"detectors": {"stage": {"mode": "off"}}}, file="f")
    names = ("peer_step", "stage", "workload", "")
    assert [name for name in names if held.judged(suspicion(name)) is None] == ["stage"]


def test_shadow_marks_and_off_drops():
    """What is on passes as it is."""
    held = tuning()
    on, shadow, off = (suspicion(job=job) for job in ("j", "rl-7", "rl-1"))
    marked = held.judged(shadow)
    assert held.judged(on) is on
    assert marked is not None
    assert marked.shadow
    assert held.judged(off) is None


def test_a_clear_passes_under_any_mode():
    """What it ends may have been raised while the node ran another job."""
    cleared = suspicion(job="rl-1", state="clear")
    assert tuning().judged(cleared) is cleared


@pytest.mark.parametrize(("mode", "told"), [("on", True), ("shadow", False), ("off", False)])
def test_domains_are_off_when_nobody_is_told_where_nodes_stand(mode, told):
    """The finding stage looks for racks and switches among the nodes it was told of and trusts."""
    held = tuning_of({"detectors": {"domains": {"mode": mode}}}, file="f")
    sample = next(traffic.nodes(count=1, seconds=1))
    placed = replace(sample, labels={"rack": "r1"})
    [announced] = NodeAnnouncer().update(placed, Location.of(placed))
    judged = held.judged(announced)
    assert isinstance(judged, NodeAnnounced)
    assert (judged.rack == "r1") is told


def test_without_a_file_everything_is_as_it_was_made():
    """No table, no difference."""
    assert Tuning().configs("c", "j") == Configs()
    assert Tuning().mode("peer_step", "c") == ("on", "")
