"""`python -m benchmarks randomised`: draw training jobs, run `slowrank backtest` on them, score its findings.

Two trivial rules are scored on the same files. Of report draws only sums are kept: what is looked into is
tuned to.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.randomised.baselines import (
    DEVIATIONS,
    RATIOS,
    accused,
    deviation_scores,
    ratio_scores,
    read_timings,
)
from benchmarks.randomised.faults import KIND_SHARES
from benchmarks.randomised.file import write_job
from benchmarks.randomised.job import MOST_RANKS
from benchmarks.randomised.ranges import SETS
from benchmarks.randomised.score import Outcome, outcome, rank_outcome, summary
from benchmarks.randomised.truth import Truth
from cli.files.replay import DETECTOR_FAILED

RESULTS = Path(__file__).parents[1] / "results" / "randomised.json"
PRODUCT = "slowrank"
SHOWN = ("ratio > 1.05", "MAD z > 5")


class Scored(NamedTuple):
    """The outcomes of one job by rule, how long its backtest took, and whether a detector ``failed``."""

    truth: Truth
    by_rule: dict[str, Outcome]
    backtest_seconds: float
    failed: bool


def main(argv: list[str]) -> int:
    """Score the asked draws and write the sums; the exit status is 1 if a detector failed on one."""
    options = _options(argv)
    seeds = SETS[options.set][options.first : options.first + options.draws]
    scored = []
    with ProcessPoolExecutor(options.workers) as pool:
        score = partial(score_seed, most_ranks=options.most_ranks, keep=options.keep)
        jobs = pool.map(score, seeds)
        for job in jobs:
            scored.append(job)
            if options.set == "tuning":
                _print_job(job)
    result = _result(scored, argv)
    _print_table(result)
    kept = json.loads(options.json.read_text()) if options.json.exists() else {}
    options.json.write_text(json.dumps(kept | {options.set: result}, indent=1) + "\n")
    return int(any(job.failed for job in scored))


def score_seed(seed: int, *, most_ranks: int, keep: Path | None = None) -> Scored:
    """Draw the job of ``seed``, run the product and the rules on its file, and score them."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        rows, found = folder / f"{seed}.ndjson.gz", folder / f"{seed}.findings.ndjson"
        truth = write_job(seed, rows, most_ranks=most_ranks)
        began = time.perf_counter()
        command = [str(Path(sys.executable).with_name("slowrank")), "backtest", str(rows), "-o", str(found)]
        ran = subprocess.run(command, check=True, capture_output=True)
        failed = DETECTOR_FAILED.encode() in ran.stderr
        if failed:
            print(f"{seed}: {ran.stderr.decode()}", file=sys.stderr)
        seconds = time.perf_counter() - began
        findings = [json.loads(line) for line in found.read_text().splitlines()]
        by_rule = {PRODUCT: outcome(truth, findings)} | _baselines(truth, rows)
        if keep:
            (folder / f"{seed}.truth.json").write_text(json.dumps(asdict(truth)) + "\n")
        return Scored(truth, by_rule, seconds, failed)


def _baselines(truth: Truth, rows: Path) -> dict[str, Outcome]:
    timings = read_timings(rows, truth.job_id)
    ratios, deviations = ratio_scores(timings), deviation_scores(timings)
    rules = {f"ratio > {t:.2f}": (ratios, t) for t in RATIOS}
    rules |= {f"MAD z > {t:.0f}": (deviations, t) for t in DEVIATIONS}
    return {name: rank_outcome(truth, accused(timings, scores, t)) for name, (scores, t) in rules.items()}


def _result(scored: list[Scored], argv: list[str]) -> dict[str, Any]:
    """Return the sums by rule, and of the product by kind of fault."""
    outcomes = {rule: [job.by_rule[rule] for job in scored] for rule in scored[0].by_rule}
    ours = outcomes[PRODUCT]
    return {
        "command": " ".join(["python -m benchmarks randomised", *argv]),
        "backtest_seconds_mean": round(sum(job.backtest_seconds for job in scored) / len(scored), 1),
        "rules": {rule: summary(jobs) for rule, jobs in outcomes.items()},
        "by_kind": {k: summary([o for o in ours if o.kind == k]) for k in KIND_SHARES},
    }


def _print_job(job: Scored) -> None:
    truth, ours = job.truth, job.by_rule[PRODUCT]
    what = f"{truth.kind} {truth.shape} ×{1 + truth.effect:.2f}" if truth.kind != "none" else "none"
    named = f"named after {ours.delay}" if ours.named else truth.why_not or "not named"
    if truth.kind == "hang":
        named = "hang found" if ours.hang else "hang not found"
    took = f"{job.backtest_seconds:.0f} s"
    print(f"{truth.seed}: {what}, {truth.ranks} ranks, {named}, {ours.false} false, {took}")


def _print_table(result: dict[str, Any]) -> None:
    rules = result["rules"]
    shown = (PRODUCT, *SHOWN)
    print(f"{'':32}" + "".join(f"{rule:>14}" for rule in shown))
    for row in rules[PRODUCT]:
        values = [rules[rule][row] for rule in shown]
        print(f"{row:32}" + "".join(f"{'-' if v is None else v:>14}" for v in values))


def _options(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks randomised", description=__doc__)
    parser.add_argument("--set", choices=SETS, default="tuning", help="which seeds (tuning)")
    parser.add_argument("--draws", type=int, default=10, help="how many jobs (10)")
    parser.add_argument("--first", type=int, default=0, help="number of the first draw of the set (0)")
    parser.add_argument("--most-ranks", type=int, default=MOST_RANKS, help=f"largest job ({MOST_RANKS})")
    parser.add_argument("--workers", type=int, default=1, help="jobs at a time (1)")
    parser.add_argument("--keep", type=Path, help="folder for rows, findings and truth of tuning draws")
    parser.add_argument("--json", type=Path, default=RESULTS, help="file for the sums")
    options = parser.parse_args(argv)
    if options.keep and options.set == "report":
        parser.error("report draws are not looked into: --keep is for tuning draws")
    return options
