"""`python -m benchmarks randomised`: draw training jobs and write their rows and their truth."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from benchmarks.randomised.file import write_job
from benchmarks.randomised.job import MOST_RANKS
from benchmarks.randomised.ranges import SETS


def main(argv: list[str]) -> int:
    """Draw the asked jobs; the exit status is 0."""
    options = _options(argv)
    seeds = SETS[options.set][options.first : options.first + options.draws]
    options.write.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        truth = write_job(seed, options.write / f"{seed}.ndjson.gz", most_ranks=options.most_ranks)
        (options.write / f"{seed}.truth.json").write_text(json.dumps(asdict(truth)) + "\n")
        named = "nameable" if truth.nameable else truth.why_not
        print(f"{seed}: {truth.kind} {truth.shape} ×{1 + truth.effect:.2f} {named} {truth.ranks} ranks")
    return 0


def _options(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks randomised", description=__doc__)
    parser.add_argument("--set", choices=SETS, default="tuning", help="which seeds (tuning)")
    parser.add_argument("--draws", type=int, default=40, help="how many jobs (40)")
    parser.add_argument("--first", type=int, default=0, help="number of the first draw of the set (0)")
    parser.add_argument("--most-ranks", type=int, default=MOST_RANKS, help=f"largest job ({MOST_RANKS})")
    parser.add_argument(
        "--write", type=Path, default=Path("drawn"), help="folder for the files and their truth (drawn)"
    )
    return parser.parse_args(argv)
