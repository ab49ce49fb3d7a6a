"""Findings against the truth of one job, and the sums over many jobs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any

from benchmarks.randomised.truth import Truth, Unit

Finding = Mapping[str, Any]

# Subjects that name hardware; a finding about a job or the telemetry is no accusation.
ACCUSED = ("rank", "gpu", "group", "node", "nic", "link", "rack", "switch")

# Kinds about telemetry, starts and losses: they do not report their subject as slow.
NO_ACCUSATION = ("exporter.", "self.", "host.clock_skew", "startup.", "training.")

WITHIN = (5, 10, 20)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The score of the findings of one job. ``delay`` [steps] since the onset, None: the unit was not named.

    ``about_cause`` counts the accusations of the unit or a part of it, ``false`` all others.
    """

    kind: str
    shape: str
    nameable: bool
    rank_steps: int
    named: bool
    delay: int | None
    about_cause: int
    false: int
    critical: int
    hang: bool
    job_wide: bool


def outcome(truth: Truth, findings: Iterable[Finding]) -> Outcome:
    """Score ``findings`` (finding.v1) against ``truth``.

    Not counted: suspected and shadow findings, which are not notified, and members of a group
    (``group_key``).
    """
    sent = [f for f in findings if _is_sent(f)]
    accused = accusations(truth, sent)
    about = [f for f, is_right in accused if is_right]
    right = [f for f in about if _is_one_of(truth, truth.accepted, f)]
    own = [f for f in sent if f["subject"].get("job_id", truth.job_id) == truth.job_id]
    since = [f for f in own if _after_onset(truth, f)]
    return Outcome(
        truth.kind,
        truth.shape,
        truth.nameable,
        truth.rank_steps,
        bool(right),
        min((_steps_until(truth, _detected(f)) for f in right), default=None),
        len(about),
        len(accused) - len(about),
        sum(f["severity"] == "critical" for f in sent),
        any(f["kind"].startswith("hang.") and _stands(truth, f) for f in own),
        any(f["kind"] == "straggler.job_wide" for f in since),
    )


def accusations(truth: Truth, findings: Iterable[Finding]) -> list[tuple[Finding, bool]]:
    """Return the findings that accuse hardware, each with whether it is about the fault or a part of it."""
    units = (*truth.accepted, *truth.partial)
    return [
        (f, _after_onset(truth, f) and _is_one_of(truth, units, f))
        for f in findings
        if _is_sent(f) and not f.get("group_key") and _accuses(f)
    ]


def stops(truth: Truth, findings: Iterable[Finding]) -> list[tuple[Finding, bool]]:
    """Return the findings about stops of the job, each with whether it stopped by a hang since then."""
    told = (f for f in findings if _is_sent(f) and f["kind"].startswith("hang.") and not _accuses(f))
    return [(f, truth.kind == "hang" and _stands(truth, f)) for f in told]


def rank_outcome(truth: Truth, accused: Mapping[int, float]) -> Outcome:
    """Return what a rule makes of the job that accuses ranks at times; a rank of the unit is right."""
    right = [at for rank, at in accused.items() if rank in truth.slowed and at >= truth.onset_at]
    delay = min((_steps_until(truth, at) for at in right), default=None)
    false = len(accused) - len(right)
    about = min(1, len(right))
    return Outcome(
        truth.kind,
        truth.shape,
        truth.nameable,
        truth.rank_steps,
        bool(right),
        delay,
        about,
        false,
        0,
        False,
        False,
    )


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the sums over jobs; shares of nothing are None."""
    slow = [o for o in outcomes if o.kind.startswith("slow_")]
    nameable = [o for o in slow if o.nameable]
    benign = [o for o in outcomes if o.kind == "none"]
    hangs = [o for o in outcomes if o.kind == "hang" and o.nameable]
    lost = [o for o in outcomes if o.kind == "lost_rank" and o.nameable]
    rings = [o for o in outcomes if o.kind == "slow_ring"]
    delays = [o.delay for o in nameable if o.delay is not None]
    causes = [o.about_cause for o in outcomes if o.about_cause]
    rank_steps = sum(o.rank_steps for o in outcomes)
    false = sum(o.false for o in outcomes)
    return {
        "jobs": len(outcomes),
        "rank_steps": rank_steps,
        "nameable": len(nameable),
        "named": _share(o.named for o in nameable),
        **{f"within_{n}": _share(o.delay is not None and o.delay <= n for o in nameable) for n in WITHIN},
        "median_delay_steps": median(delays) if delays else None,
        "others_named": sum(o.named for o in slow if not o.nameable),
        "false_accusations": false,
        "false_per_1000_rank_steps": round(1000 * false / rank_steps, 5) if rank_steps else None,
        # One-sided 95 % bound: a benchmark without false accusations does not prove a rate of zero.
        "false_per_1000_bound": round(1000 * _upper_count(false) / rank_steps, 5) if rank_steps else None,
        "jobs_falsely_accused": sum(o.false > 0 for o in outcomes),
        "benign_jobs": len(benign),
        "benign_accused": sum(o.false > 0 for o in benign),
        "benign_critical": sum(o.critical > 0 for o in benign),
        "benign_hangs": sum(o.hang for o in benign),
        "hangs": len(hangs),
        "hangs_found": _share(o.hang for o in hangs),
        "lost": len(lost),
        "lost_named": _share(o.named for o in lost),
        "rings": len(rings),
        "rings_job_wide": _share(o.job_wide for o in rings),
        "findings_per_cause": round(sum(causes) / len(causes), 3) if causes else None,
    }


def _is_sent(finding: Finding) -> bool:
    return finding["status"] != "suspected" and not finding.get("shadow")


def _accuses(finding: Finding) -> bool:
    return finding["subject"]["type"] in ACCUSED and not finding["kind"].startswith(NO_ACCUSATION)


def _detected(finding: Finding) -> float:
    return datetime.fromisoformat(finding["detected_at"]).timestamp()


def _after_onset(truth: Truth, finding: Finding) -> bool:
    """Return whether the finding is not older than the fault, by clocks as wrong as those of the job."""
    return _detected(finding) >= truth.onset_at - truth.clock_error


def _stands(truth: Truth, finding: Finding) -> bool:
    """Return whether a finding about a stop is about the fault, where there is one.

    A stop soon after another is the same finding, of the first one's time: then it stands, and was reported
    since the fault.
    """
    if truth.kind == "none" or _after_onset(truth, finding):
        return True
    reported = datetime.fromisoformat(finding["last_seen_at"]).timestamp()
    return finding["status"] == "open" and reported >= truth.onset_at - truth.clock_error


def _steps_until(truth: Truth, at: float) -> int:
    """Return how many steps ended between the onset and ``at``."""
    return bisect_right(truth.step_ends, at) - bisect_right(truth.step_ends, truth.onset_at)


def _is_one_of(truth: Truth, units: Sequence[Unit], finding: Finding) -> bool:
    subject = finding["subject"]
    if subject.get("job_id", truth.job_id) != truth.job_id:
        return False
    if subject["type"] == "group" and not subject.get("coords"):
        # Of the groups of a machine that no coordinates tell apart, its ranks show which it is.
        ranks = {suspect["subject"].get("rank") for suspect in finding.get("suspects", ())}
        if ranks and ranks.isdisjoint(truth.slowed):
            return False
    return any(_same(unit, subject) for unit in units)


def _same(unit: Unit, subject: Mapping[str, Any]) -> bool:
    """Return whether ``subject`` is ``unit``; of a group it may leave out coordinates, as a job does."""
    if unit["type"] != "group":
        return all(subject.get(name) == value for name, value in unit.items())
    coords = subject.get("coords") or {}
    same_place = subject["type"] == "group" and subject.get("node") == unit["node"]
    return same_place and all(unit["coords"].get(k) == v for k, v in coords.items() if k != "tp")


def _share(flags: Iterable[bool]) -> float | None:
    values = list(flags)
    return round(sum(values) / len(values), 4) if values else None


def _upper_count(count: int) -> float:
    """Return a one-sided 95 % bound of a Poisson mean (Wilson-Hilferty); 3.0 for zero events."""
    n = count + 1
    return float(n * (1 - 1 / (9 * n) + 1.645 / (3 * n**0.5)) ** 3)
