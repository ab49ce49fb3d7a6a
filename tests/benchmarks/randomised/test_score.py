"""Findings and trivial rules against the truth of a drawn job."""

import json
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from benchmarks.randomised.baselines import Timings, accused, deviation_scores, ratio_scores, read_timings
from benchmarks.randomised.command import main
from benchmarks.randomised.file import write_job
from benchmarks.randomised.score import outcome, rank_outcome, stops, summary
from benchmarks.randomised.truth import Truth

RANK = {"type": "rank", "rank": 3}
GPU = {"type": "gpu", "node": "n0", "gpu_index": 3}
GROUP = {"type": "group", "node": "n0", "coords": {"dp": 1, "pp": 0}}
NODE = {"type": "node", "node": "n0"}


def truth(kind="slow_rank", **changes):
    """Return a fault of rank 3 on node n0 from step 10 on, steps of one second."""
    known = {
        "seed": 1,
        "job_id": "job",
        "kind": kind,
        "shape": "lasting",
        "effect": 0.5,
        "onset": 10,
        "onset_at": 10.0,
        "culprit": {"rank": 3, "node": "n0"},
        "members": (3,),
        "slowed": (2, 3),
        "accepted": (RANK, GPU, GROUP),
        "partial": (NODE,),
        "nameable": True,
        "why_not": "",
        "sharpness": 20.0,
        "benign": (),
        "ranks": 8,
        "rank_steps": 800,
        "columns": "full",
        "clock_error": 0.5,
        "step_ends": tuple(float(end) for end in range(1, 101)),
    }
    return Truth(**(known | changes))


def finding(subject, at=14.0, **changes):
    """Return a finding.v1 about ``subject``, detected at second ``at``."""
    detected = datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")
    known = {
        "kind": "straggler.fail_slow",
        "status": "open",
        "severity": "warning",
        "subject": subject,
        "detected_at": detected,
        "last_seen_at": detected,
    }
    return known | changes


@pytest.mark.parametrize(
    "subject",
    [RANK, GPU, GROUP | {"coords": {"dp": 1, "pp": 0}}, GROUP | {"coords": {"dp": 1}}, GPU | {"rank": 3}],
)
def test_the_unit_is_named(subject):
    """A finding about the rank, its GPU or its tensor-parallel group names it, in steps since the onset."""
    result = outcome(truth(), [finding(subject | {"job_id": "job"})])
    assert (result.named, result.delay, result.false) == (True, 4, 0)


@pytest.mark.parametrize(
    ("seen", "found"),
    [
        ({"at": 14.0}, True),
        ({"at": 5.0, "last_seen_at": "1970-01-01T00:00:12Z"}, True),
        ({"at": 5.0, "last_seen_at": "1970-01-01T00:00:06Z"}, False),
        ({"at": 5.0, "last_seen_at": "1970-01-01T00:00:12Z", "status": "resolved"}, False),
    ],
    ids=["since", "stands", "stale", "over"],
)
def test_a_hang_is_found_by_what_was_reported_since(seen, found):
    """A finding that an earlier stop had opened counts while it stands, and only if reported again."""
    about = finding({"type": "job", "job_id": "job"}, kind="hang.job", **seen)
    assert outcome(truth("hang"), [about]).hang == found
    assert stops(truth("hang"), [about, finding(RANK)]) == [(about, found)]
    assert stops(truth("none"), [about | {"status": "open"}]) == [(about | {"status": "open"}, False)]


@pytest.mark.parametrize(
    "subject",
    [
        {"type": "rank", "rank": 2},
        GPU | {"gpu_index": 1},
        GROUP | {"coords": {"dp": 2}},
        RANK | {"job_id": "other"},
    ],
)
def test_another_unit_is_a_false_accusation(subject):
    """A mate, another group or a rank of another job is not the culprit."""
    result = outcome(truth(), [finding(subject)])
    assert (result.named, result.false) == (False, 1)


@pytest.mark.parametrize(("ranks", "named"), [((2, 3), True), ((4, 5), False)])
def test_a_group_without_coordinates_is_the_one_of_its_ranks(ranks, named):
    suspects = [{"subject": {"type": "rank", "rank": rank}, "probability": 0.5} for rank in ranks]
    result = outcome(truth(), [finding({"type": "group", "node": "n0", "job_id": "job"}, suspects=suspects)])
    assert (result.named, result.false) == (named, 1 - named)


def test_part_of_the_cause_neither_names_nor_accuses():
    """A finding about a part of the unit is one more finding of the cause, no false one."""
    result = outcome(truth(), [finding(RANK), finding(NODE)])
    assert (result.named, result.about_cause, result.false) == (True, 2, 0)


def test_before_the_onset_every_accusation_is_false():
    """The culprit named before it was one is accused falsely, but for the error of the clocks."""
    assert outcome(truth(), [finding(RANK, at=9.0)]).false == 1
    assert outcome(truth(), [finding(RANK, at=9.6)]).named


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "suspected"},
        {"shadow": True},
        {"group_key": "other"},
        {"kind": "exporter.stale"},
        {"subject": {"type": "job", "job_id": "job"}},
    ],
)
def test_what_accuses_none(changes):
    """Suspected, shadow and grouped findings and those about telemetry or the job are no accusation."""
    result = outcome(truth("none", accepted=(), partial=()), [finding(RANK) | changes])
    assert result.false == 0


def test_hangs_and_job_wide_findings_are_noted():
    """A hang is found by a finding of that kind after the onset."""
    subject = {"type": "job", "job_id": "job"}
    found = outcome(truth("hang"), [finding(subject, kind="hang.job", severity="critical")])
    assert (found.hang, found.critical) == (True, 1)
    assert not outcome(truth("hang"), [finding(subject, at=2.0, kind="hang.job")]).hang
    assert outcome(truth("slow_ring"), [finding(subject, kind="straggler.job_wide")]).job_wide


def test_sums_count_each_goal():
    """Shares are of nameable faults, rates of all rank-steps, and zero events have the bound of three."""
    benign = truth("none", accepted=(), partial=(), nameable=False)
    sums = summary(
        [
            outcome(truth(), [finding(RANK)]),
            outcome(truth(), []),
            outcome(benign, [finding(RANK, severity="critical")]),
        ]
    )
    assert (sums["nameable"], sums["named"], sums["within_5"]) == (2, 0.5, 0.5)
    assert (sums["benign_accused"], sums["benign_critical"]) == (1, 1)
    assert sums["false_per_1000_rank_steps"] == pytest.approx(1000 / 2400, abs=1e-4)
    assert summary([outcome(benign, [])])["false_per_1000_bound"] == pytest.approx(3.0 / 0.8, rel=0.03)


def slow_third(factor):
    """Return times of eight ranks of about one second, of which rank 3 takes ``factor`` from step 50 on."""
    compute = 1 + 0.005 * np.random.default_rng(1).standard_normal((100, 8))
    compute[50:, 3] *= factor
    compute[20, 5] = np.nan
    return Timings(compute, np.arange(1.0, 101.0), np.zeros(8, np.int64))


def test_the_rules_name_a_slow_rank():
    """Both rules accuse the slow rank alone: after half of 20 steps, and after three."""
    timings = slow_third(1.2)
    assert accused(timings, ratio_scores(timings), 1.05) == {3: 60.0}
    assert accused(timings, deviation_scores(timings), 5.0) == {3: 53.0}
    assert accused(slow_third(1.0), ratio_scores(slow_third(1.0)), 1.05) == {}


def test_a_tensor_mate_is_right_for_a_rule():
    """Rules cannot name groups, so that a rank of the group counts as the culprit."""
    result = rank_outcome(truth(), {2: 15.0, 3: 16.0, 7: 20.0})
    assert (result.named, result.delay, result.false) == (True, 5, 1)


def test_rules_read_the_job_of_a_file(tmp_path):
    """The timings of a file have a row for each step of the job and a column for each rank."""
    path = tmp_path / "job.ndjson.gz"
    known = write_job(2, path, most_ranks=16)
    timings = read_timings(path, known.job_id)
    assert timings.compute.shape[1] == known.ranks
    assert (np.diff(timings.ts[:10]) > 0).all()


def test_report_draws_are_not_kept(tmp_path):
    """Files of report draws cannot be asked for."""
    with pytest.raises(SystemExit):
        main(["--set", "report", "--keep", str(tmp_path)])


@pytest.mark.slow
def test_the_command_scores_a_draw(tmp_path: Path):
    """One small draw goes through the installed command and leaves the sums of every rule."""
    sums = tmp_path / "sums.json"
    assert main(["--draws", "1", "--first", "4", "--most-ranks", "8", "--json", str(sums)]) == 0
    result = json.loads(sums.read_text())["tuning"]
    assert result["rules"]["slowrank"]["jobs"] == 1
    assert len(result["rules"]) == 20
